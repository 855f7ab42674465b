//! `credential …` and `key …`. Values come from a terminal, a pipe or the environment, never from an argument
//! that other users of the machine could read.

use super::Asking;
use crate::{
    cli::{CredentialCommand, KeyCommand},
    config::Environment,
    exit::{Exit, Failure},
    table::table,
    term::{Form, read_all},
};
use protocol::{ApiKey, CreateCredential, CreateKey, Credential};
use std::collections::BTreeMap;

impl Asking<'_> {
    pub(crate) async fn credential(
        &self,
        command: &CredentialCommand,
        environment: &Environment,
    ) -> Result<Exit, Failure> {
        match command {
            CredentialCommand::Add { kind, label, env, lines } => {
                let mut request = CreateCredential {
                    kind: kind.clone(),
                    key: None,
                    env: BTreeMap::new(),
                    label: label.clone(),
                };
                if *lines {
                    request.env = variables(&read_all()?)?;
                } else if env.is_empty() {
                    request.key = Some(self.typed_key(kind)?);
                } else {
                    request.env = from_environment(env, environment)?;
                }
                let credential = self.client.create_credential(&request).await?;
                match self.term.form {
                    Form::Json => self.term.json(&credential)?,
                    Form::Text => self.term.say(&credential.id.to_string())?,
                }
            }
            CredentialCommand::Ls => self.list_credentials(&self.client.credentials().await?)?,
            CredentialCommand::Rm { ids } => {
                for id in ids {
                    let credential = self.client.remove_credential(*id).await?;
                    match self.term.form {
                        Form::Json => self.term.json(&credential)?,
                        Form::Text => self.term.say(&format!("{id}  removed"))?,
                    }
                }
            }
        }
        Ok(Exit::Done)
    }

    fn typed_key(&self, kind: &str) -> Result<String, Failure> {
        let key = self.term.secret(&format!("the {kind} key (it is not shown): "))?;
        if key.is_empty() {
            return Err(Failure::Usage(
                "no value was given; type it, pipe it in, or take it from a variable with --env".to_owned(),
            ));
        }
        Ok(key)
    }

    fn list_credentials(&self, credentials: &[Credential]) -> Result<(), Failure> {
        if self.term.form == Form::Json {
            return credentials.iter().try_for_each(|credential| self.term.json(credential));
        }
        if credentials.is_empty() {
            self.term.note("no credentials; `outlast credential add TYPE` stores one");
            return Ok(());
        }
        let row = |one: &Credential| {
            vec![
                one.id.to_string(),
                one.kind.clone(),
                one.variables.join(","),
                one.created_at.to_string(),
                one.label.clone().unwrap_or_default(),
            ]
        };
        let rows: Vec<_> = credentials.iter().map(row).collect();
        self.term.say(&table(
            self.term.paint(),
            &["CREDENTIAL", "TYPE", "VARIABLES", "CREATED", "LABEL"],
            &rows,
        ))
    }

    pub(crate) async fn key(&self, command: &KeyCommand) -> Result<Exit, Failure> {
        match command {
            KeyCommand::Create { label, scope, tenant } => {
                let request = CreateKey { label: label.clone(), scope: *scope, tenant: tenant.clone() };
                let created = self.client.create_key(&request).await?;
                match self.term.form {
                    Form::Json => self.term.json(&created)?,
                    Form::Text => {
                        self.term.note(&format!(
                            "key {} of tenant {}, scope {}; it is shown this once:",
                            created.api_key.id, created.api_key.tenant_id, created.api_key.scope
                        ));
                        self.term.say(&created.key)?;
                    }
                }
            }
            KeyCommand::Ls => self.list_keys(&self.client.keys().await?)?,
            KeyCommand::Rm { ids } => {
                for id in ids {
                    let key = self.client.remove_key(*id).await?;
                    match self.term.form {
                        Form::Json => self.term.json(&key)?,
                        Form::Text => self.term.say(&format!("{id}  removed"))?,
                    }
                }
            }
        }
        Ok(Exit::Done)
    }

    fn list_keys(&self, keys: &[ApiKey]) -> Result<(), Failure> {
        if self.term.form == Form::Json {
            return keys.iter().try_for_each(|key| self.term.json(key));
        }
        let row = |key: &ApiKey| {
            vec![
                key.id.to_string(),
                key.tenant_id.to_string(),
                key.scope.to_string(),
                key.created_at.to_string(),
                key.label.clone().unwrap_or_default(),
            ]
        };
        let rows: Vec<_> = keys.iter().map(row).collect();
        self.term.say(&table(self.term.paint(), &["KEY", "TENANT", "SCOPE", "CREATED", "LABEL"], &rows))
    }
}

fn from_environment(
    names: &[String],
    environment: &Environment,
) -> Result<BTreeMap<String, String>, Failure> {
    let value = |name: &String| {
        let value = environment.text(name)?.ok_or_else(|| {
            Failure::Usage(format!(
                "there is no variable {name} here; set it, or leave --env out and type the value"
            ))
        })?;
        Ok((name.clone(), value))
    };
    names.iter().map(value).collect()
}

/// `NAME=VALUE` lines; empty ones and those that begin with `#` are passed over.
fn variables(text: &str) -> Result<BTreeMap<String, String>, Failure> {
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#'));
    let variables: BTreeMap<_, _> = lines
        .map(|(line, number)| match line.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.to_owned())),
            // The line may hold a secret, so it is named by its number.
            _ => Err(Failure::Usage(format!("line {number} of the input is not NAME=VALUE"))),
        })
        .collect::<Result<_, _>>()?;
    if variables.is_empty() {
        return Err(Failure::Usage("the input holds no NAME=VALUE line".to_owned()));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_variables() {
        let read = variables("# note\nA=1\n\nB = two=2\n").unwrap();
        assert_eq!((read["A"].as_str(), read["B"].as_str()), ("1", " two=2"));
    }

    #[test]
    fn mistakes_do_not_repeat_the_secret() {
        for bad in ["A=1\nsecret-token", "=secret-token", ""] {
            let message = variables(bad).unwrap_err().to_string();
            assert!(!message.contains("secret-token"), "{message}");
        }
        let environment = Environment::of(&[("A", "1")]);
        assert!(from_environment(&["A".into()], &environment).is_ok());
        assert!(from_environment(&["B".into()], &environment).is_err());
    }
}
