//! A machine that was reached, and the keepers that are lodged on it.

use super::{
    Lodging, Machine, Policy, RemoteError, bare,
    channel::{Link, quoted},
    site,
};
use crate::keeper::{Keeper, KeeperError, Limits, Pipe, join};
use ::keeper::{
    codec::Blob,
    config::{self, CONFIG_BYTES, CONFIG_VERSION, Config, Started},
    roles::{LODGE, RELAY},
    wire,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long a keeper over there has to come up or to be found.
const START: Duration = Duration::from_secs(20);

/// What finds a keeper again. Its token, which is a secret, is kept apart. A stand-in has no program, and is never found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lodged {
    pub folder: String,
    pub program: String,
    /// A container's own id: another that has its name is another machine.
    pub machine: String,
    pub epoch: u64,
}

/// A keeper that was started, and what to write down of it.
#[derive(Debug)]
pub struct Joined {
    pub keeper: Keeper,
    pub lodged: Lodged,
    /// To be sealed.
    pub token: [u8; 32],
}

/// A machine that was reached. A cheap handle; dropping it ends nothing.
#[derive(Debug, Clone)]
pub struct Reached {
    link: Link,
    machine: Machine,
    policy: Policy,
}

impl Reached {
    pub(crate) fn new(link: Link, machine: Machine, policy: Policy) -> Self {
        Self { link, machine, policy }
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// For people: who is reached where.
    pub fn whom(&self) -> String {
        self.link.whom()
    }

    /// The user and port that the SSH configuration and the target came to; none for a container.
    pub fn account(&self) -> Option<(&str, &str)> {
        match &self.link {
            Link::Ssh(connection) => Some(connection.account()),
            Link::Docker(_) => None,
        }
    }

    /// Lodges a keeper there. [`RemoteError::NoKeeper`] says that none can run there, or may.
    pub async fn lodge(&self) -> Result<Joined, RemoteError> {
        let whom = self.link.whom();
        if self.policy.lodging == Lodging::Forbidden {
            let why = "the operator forbids keepers on other machines".to_owned();
            return Err(RemoteError::NoKeeper { whom, why });
        }
        let (program, home) = site::uploaded(&self.link, &self.machine).await?;
        let random = |_| RemoteError::io("draw a random number")(std::io::ErrorKind::Other.into());
        let mut token = wire::Token::default();
        getrandom::fill(&mut token).map_err(random)?;
        let name = uuid::Uuid::now_v7().simple().to_string();
        let folder = format!("{home}/k-{name}");
        let lodging = config::Lodging {
            token,
            config: Config {
                version: CONFIG_VERSION,
                folder: Blob(folder.clone().into_bytes()),
                name,
                orphan_seconds: u32::try_from(self.policy.orphan.as_secs()).unwrap_or(u32::MAX),
                limits: Limits::default(),
                sandbox: None,
            },
        };
        let mut order = Vec::new();
        wire::frame(&lodging, &mut order).map_err(|_| KeeperError::Gone)?;
        let script = format!("exec {} {LODGE}", quoted(&program));
        let keeper = match begin(&self.link, &script, &order, token).await? {
            Begun::Joined(keeper) => keeper,
            Begun::Failed(why) => return Err(RemoteError::NoKeeper { whom, why }),
        };
        let (machine, epoch) = (self.link.machine(), keeper.epoch());
        Ok(Joined { keeper, lodged: Lodged { folder, program, machine, epoch }, token })
    }

    /// A stand-in for a keeper, where [`Self::lodge`] says that there can be none. What that promises is
    /// [`crate::keeper::Manner::Bare`]'s; it needs a folder that can be written to.
    pub async fn stand_in(&self) -> Result<Joined, RemoteError> {
        let whom = self.link.whom();
        let Some(home) = self.machine.folder.as_ref().or(self.machine.store.as_ref()) else {
            let why = format!(
                "a plain shell needs a folder to write to, and none will do: {}; make one of them writable",
                self.machine.unfit.join("; ")
            );
            return Err(RemoteError::NoKeeper { whom, why });
        };
        let folder = format!("{home}/s-{}", uuid::Uuid::now_v7().simple());
        let token = wire::Token::default();
        let keeper = join(bare::start(&self.link, &folder).await?, token).await?;
        let (machine, epoch) = (self.link.machine(), keeper.epoch());
        Ok(Joined { keeper, lodged: Lodged { folder, program: String::new(), machine, epoch }, token })
    }

    /// Runs a text of the plainest shell to its end, in `/` and with these variables beside the login's. What it wrote.
    pub async fn script(
        &self,
        env: &BTreeMap<String, String>,
        text: &str,
        limit: Duration,
    ) -> Result<String, RemoteError> {
        let mut input = String::new();
        for (name, value) in env.iter().filter(|(name, _)| is_variable(name)) {
            input.push_str(&format!("export {name}={}\n", quoted(value)));
        }
        input.push_str(text);
        // Read whole first, so that nothing in it can read the rest of it; and no secret is on a command line.
        let script = "t=$(cat); cd /; exec </dev/null; eval \"$t\"";
        let (answer, _) = self.link.run(script, input.as_bytes(), limit).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

fn is_variable(name: &str) -> bool {
    name.chars().all(|each| each.is_ascii_alphanumeric() || each == '_')
        && name.starts_with(|first: char| !first.is_ascii_digit())
}

pub(crate) async fn take_up(link: &Link, lodged: &Lodged, token: wire::Token) -> Result<Keeper, RemoteError> {
    let whom = link.whom();
    let lost = |why: String| RemoteError::Lost { whom: whom.clone(), why };
    if lodged.program.is_empty() {
        return Err(lost("it was a plain shell without a keeper, which ends with its connection".to_owned()));
    }
    if link.machine() != lodged.machine {
        return Err(lost("the container was removed, and another has its name".to_owned()));
    }
    let gone = "exec printf 'gone.'";
    // The program may have been tidied away; any other version relays as well.
    let script = format!(
        "if [ -S {folder}/{socket} ]; then [ -x {program} ] && exec {program} {RELAY} {folder}; exec printf 'bare.'; \
         fi; {gone}",
        folder = quoted(&lodged.folder),
        program = quoted(&lodged.program),
        socket = config::SOCKET,
    );
    let begun = match begin(link, &script, b"", token).await? {
        Begun::Failed(why) if why == BARE => {
            let machine = site::look(link, &[]).await?;
            let (program, _) = site::uploaded(link, &machine).await?;
            let script = format!("exec {} {RELAY} {}", quoted(&program), quoted(&lodged.folder));
            begin(link, &script, b"", token).await?
        }
        begun => begun,
    };
    match begun {
        Begun::Joined(keeper) if keeper.epoch() == lodged.epoch => Ok(keeper),
        Begun::Joined(_) => Err(lost("another keeper is in its place".to_owned())),
        Begun::Failed(why) => Err(lost(why)),
    }
}

enum Begun {
    Joined(Keeper),
    Failed(String),
}

const BARE: &str = "the program is gone";

/// Runs what relays to a keeper, hears whether it does, and says hello.
async fn begin(link: &Link, script: &str, order: &[u8], token: wire::Token) -> Result<Begun, RemoteError> {
    let broken = |why: String| RemoteError::Broken { whom: link.whom(), why };
    let mut channel = link.open(script).await?;
    let heard = tokio::time::timeout(START, async {
        channel.pipe.write.write_all(order).await?;
        channel.pipe.write.flush().await?;
        hear(&mut channel.pipe).await
    });
    match heard.await {
        Err(_) => return Err(broken(format!("the keeper did not come up within {START:?}"))),
        Ok(Err(error)) => {
            let complaints = channel.complaints.text();
            return Err(broken(if complaints.is_empty() { error.to_string() } else { complaints }));
        }
        Ok(Ok(Some(why))) => return Ok(Begun::Failed(why)),
        Ok(Ok(None)) => {}
    }
    match join(channel.pipe, token).await {
        Ok(keeper) => Ok(Begun::Joined(keeper)),
        Err(KeeperError::TurnedAway) => Ok(Begun::Failed("the keeper there is another's".to_owned())),
        Err(error) => Err(error.into()),
    }
}

/// The first frame: none if all is well, else what is wrong.
async fn hear(pipe: &mut Pipe) -> std::io::Result<Option<String>> {
    let mut head = [0; 4];
    let mut got = 0;
    while got < head.len() {
        match pipe.read.read(&mut head[got..]).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            length => got += length,
        }
    }
    match &head {
        // The script's own words, instead of a frame's length.
        b"gone" => {
            return Ok(Some(
                "the keeper is not there any more; the machine was restarted, or it ended".into(),
            ));
        }
        b"bare" => return Ok(Some(BARE.to_owned())),
        _ => {}
    }
    let length = u32::from_le_bytes(head) as usize;
    if length > CONFIG_BYTES {
        return Err(std::io::Error::other("it said something that cannot be read"));
    }
    let mut body = vec![0; length];
    pipe.read.read_exact(&mut body).await?;
    match wire::read(&body) {
        Ok(Started::Ready { .. }) => Ok(None),
        Ok(Started::Failed { what, fix }) => Ok(Some(format!("{what}; {fix}"))),
        Err(error) => Err(std::io::Error::other(error.to_string())),
    }
}
