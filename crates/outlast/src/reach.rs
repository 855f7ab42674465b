//! From the configuration to a client, and from what a person typed to a session.

use crate::{
    config::{Config, DEFAULT_LISTEN},
    exit::Failure,
    running::{Running, reachable_url},
};
use client::{Client, Error, Patience};
use protocol::{ListSessions, SessionId, SessionKindFilter, SessionRef, limits};
use std::{io, path::Path};

const KEY_FILE: &str = "api-key";
/// A shorter beginning of an id is more likely a slip.
const PREFIX_CHARS: usize = 4;
/// How many sessions an ambiguous beginning names in its message.
const NAMED_CANDIDATES: usize = 3;

/// A client for the server that the configuration means.
pub(crate) fn client(config: &Config) -> Result<Client, Failure> {
    patient_client(config, Patience::default())
}

pub(crate) fn patient_client(config: &Config, patience: Patience) -> Result<Client, Failure> {
    let url = url(config);
    let key = key(config, &url)?;
    Ok(Client::with_patience(&url, &key, patience)?)
}

/// The key given, else the data folder's own.
pub(crate) fn key(config: &Config, url: &str) -> Result<String, Failure> {
    match &config.key {
        Some(key) => Ok(key.reveal().to_owned()),
        None => folder_key(config, url),
    }
}

/// The address given, else the running server's, else the one it would take.
pub(crate) fn url(config: &Config) -> String {
    config
        .url
        .clone()
        .or_else(|| Running::read(&config.data).map(|running| running.url))
        .unwrap_or_else(|| reachable_url(config.server.listen.unwrap_or(DEFAULT_LISTEN)))
}

/// The data folder's own key. It opens the server of that folder, so it is not sent to an address elsewhere
/// that somebody typed.
fn folder_key(config: &Config, url: &str) -> Result<String, Failure> {
    if config.url.is_some() && !is_this_machine(url) {
        return Err(Failure::Usage(format!(
            "no key for {url}: give one with OUTLAST_KEY or --key (the data folder's key is only used for servers on this machine)"
        )));
    }
    let path = config.data.join(KEY_FILE);
    match read_key(&path) {
        Ok(key) => Ok(key),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure::Usage(format!(
            "there is no key in {}: start a server with `outlast serve`, name its folder with --data, or give a key with OUTLAST_KEY",
            config.data.display()
        ))),
        Err(error) => Err(Failure::Broken(format!("{} cannot be read: {error}", path.display()))),
    }
}

pub(crate) fn read_key(path: &Path) -> io::Result<String> {
    std::fs::read_to_string(path).map(|text| text.trim().to_owned())
}

fn is_this_machine(url: &str) -> bool {
    if url.starts_with("unix:") {
        return true;
    }
    let Some((_, rest)) = url.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return false;
    }
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The session that a person means: an id, an alias, or a beginning of an id that fits no other.
pub(crate) async fn session(client: &Client, typed: &str) -> Result<SessionId, Failure> {
    let named = match typed.parse::<SessionRef>() {
        Ok(SessionRef::Id(id)) => return Ok(id),
        Ok(alias) => Some(alias),
        Err(_) => None,
    };
    if let Some(alias) = &named {
        match client.session(alias).await {
            Ok(session) => return Ok(session.id),
            Err(Error::Refused { status: 400 | 404, .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let unknown = |why: &str| {
        Failure::Usage(format!("no session is called {typed:?}{why}; `outlast ls --all` lists them"))
    };
    let prefix = typed.to_ascii_lowercase();
    if !prefix.chars().all(|c| c.is_ascii_hexdigit() || c == '-') {
        return Err(unknown(""));
    }
    if prefix.len() < PREFIX_CHARS {
        return Err(unknown(" (a beginning of an id needs 4 characters)"));
    }
    let found = with_prefix(client, &prefix).await?;
    match found.as_slice() {
        [] => Err(unknown("")),
        [one] => Ok(*one),
        several => {
            let names: Vec<_> = several.iter().take(NAMED_CANDIDATES).map(ToString::to_string).collect();
            Err(Failure::Usage(format!(
                "{typed:?} is the beginning of several sessions: {}{}; write more of it",
                names.join(", "),
                if several.len() > NAMED_CANDIDATES { ", …" } else { "" }
            )))
        }
    }
}

/// Sessions whose id begins so. Ids begin with the time they were made at and lists are newest first, so the
/// search ends at the first page that lies wholly before the prefix.
async fn with_prefix(client: &Client, prefix: &str) -> Result<Vec<SessionId>, Failure> {
    let mut request = ListSessions {
        kind: SessionKindFilter::All,
        limit: Some(limits::LIST_PAGE),
        ..ListSessions::default()
    };
    let mut found = vec![];
    loop {
        let page = client.sessions(&request).await?;
        let ids: Vec<_> = page.sessions.iter().map(|session| session.id.to_string()).collect();
        let matching = page.sessions.iter().zip(&ids).filter(|(_, id)| id.starts_with(prefix));
        found.extend(matching.map(|(session, _)| session.id));
        let over = ids.iter().all(|id| id.as_str() < prefix);
        if over || found.len() > NAMED_CANDIDATES || page.next_cursor.is_none() {
            return Ok(found);
        }
        request.cursor = page.next_cursor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folders_key_stays_on_this_machine() {
        for here in
            ["unix:/s", "http://127.0.0.1:1", "http://localhost/x", "https://[::1]:4100", "http://127.9.0.1"]
        {
            assert!(is_this_machine(here), "{here}");
        }
        for elsewhere in [
            "http://10.0.0.1",
            "https://example.org",
            "http://localhost.evil",
            "http://localhost@evil",
            "http://evil/localhost",
            "x",
        ] {
            assert!(!is_this_machine(elsewhere), "{elsewhere}");
        }
    }
}
