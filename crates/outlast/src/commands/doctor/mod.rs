//! `doctor`: looks at the data folder, the machine and the server, leaves nothing changed, and says what is wrong
//! and what to do about it.

mod folder;
mod isolation;
mod server;
mod service;

use crate::{
    config::Config,
    exit::{Exit, Failure},
    running::Running,
    term::{Form, Paint, Term},
};
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Good,
    Warning,
    Fault,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    subject: &'static str,
    verdict: Verdict,
    /// What was seen, and what to do when it is not good.
    text: String,
}

impl Finding {
    fn new(subject: &'static str, verdict: Verdict, text: impl Into<String>) -> Self {
        Self { subject, verdict, text: text.into() }
    }
}

pub(crate) async fn doctor(config: &Config, term: &Term) -> Result<Exit, Failure> {
    let data = config.data.clone();
    let mut findings = tokio::task::spawn_blocking(move || folder::machine(&data))
        .await
        .map_err(|error| Failure::Broken(format!("the examination broke off: {error}")))?;
    let at_work = Running::read(&config.data).filter(Running::is_alive);
    findings.extend(isolation::isolation(config, at_work.as_ref()).await?);
    findings.extend(service::service(at_work.as_ref()).await);
    findings.extend(server::server(config).await);
    for finding in &findings {
        match term.form {
            Form::Json => term.json(finding)?,
            Form::Text => term.say(&line(term.paint(), finding))?,
        }
    }
    let faulty = findings.iter().any(|finding| finding.verdict == Verdict::Fault);
    Ok(if faulty { Exit::Broken } else { Exit::Done })
}

fn line(paint: Paint, finding: &Finding) -> String {
    let mark = match finding.verdict {
        Verdict::Good => paint.green("ok  "),
        Verdict::Warning => paint.yellow("warn"),
        Verdict::Fault => paint.red("bad "),
    };
    format!("{mark}  {:<12}  {}", finding.subject, finding.text)
}
