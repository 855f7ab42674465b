//! The program: the server and the command line in one binary.
//!
//! It resolves flags, environment and configuration file once, opens the rooms below or asks a server through
//! the client, and turns every ending into a documented exit code. It holds no rules about sessions.

mod background;
mod catalogue;
mod cli;
mod commands;
mod config;
mod demo_agent;
mod exit;
mod maintenance;
mod reach;
mod render;
mod running;
mod table;
mod term;
mod update;

use clap::{CommandFactory as _, Parser as _, error::ErrorKind};
use cli::{Cli, Command};
use commands::{Asking, acp, doctor, mcp, serve, sessions::Verb};
use config::{Config, Environment};
use exit::{Exit, Failure};
use std::process::ExitCode;
use term::{Colour, Form, Term};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let serve = match &cli.command {
        // The agent reads no configuration: to the server it is one more program.
        Command::DemoAgent { args } => return demo_agent::run(args),
        Command::Serve(serve) => Some(serve),
        _ => None,
    };
    let config = match Config::resolve(cli.common.clone(), serve, Environment::of_this_process()) {
        Ok(config) => config,
        Err(failure) => return finish(&Term::new(Form::Text, Colour::Never), Err(failure)),
    };
    let term = Term::new(config.form, config.colour);
    let result = in_runtime(async { dispatch(&cli.command, &config, &term).await });
    finish(&term, result)
}

/// Help and version go to stdout and are a success; everything else that clap says is about usage.
fn refuse(error: &clap::Error) -> ExitCode {
    let term = Term::new(Form::Text, Colour::Never);
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            finish(&term, term.stream(&text).map(|()| Exit::Done))
        }
        _ => {
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            finish(&term, Err(Failure::Usage(text.trim_end().to_owned())))
        }
    }
}

/// Runs to the end and does not wait for a thread that still reads from the terminal.
fn in_runtime(work: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Broken(format!("the runtime cannot be started: {error}")))?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    result
}

fn finish(term: &Term, result: Result<Exit, Failure>) -> ExitCode {
    match result {
        Ok(exit) => exit.into(),
        Err(failure) => {
            if let Some(message) = failure.message() {
                term.complain(&message);
            }
            failure.exit().into()
        }
    }
}

async fn dispatch(command: &Command, config: &Config, term: &Term) -> Result<Exit, Failure> {
    let asking = || reach::client(config).map(|client| Asking { client, term });
    match command {
        Command::Serve(_) => serve::serve(config, term).await,
        Command::Run(asked) => asking()?.run(asked, &config.environment).await,
        Command::Ls(asked) => asking()?.ls(asked).await,
        Command::Show { session } => asking()?.show(session).await,
        Command::Usage { session } => asking()?.usage(session.as_deref()).await,
        Command::Logs(asked) => asking()?.logs(asked).await,
        Command::Watch(asked) => asking()?.watch(asked).await,
        Command::Pause(asked) => asking()?.each(Verb::Pause, &asked.sessions).await,
        Command::Fork { session, at, name } => asking()?.fork(session, *at, name.clone()).await,
        Command::Resume(asked) => asking()?.each(Verb::Resume, &asked.sessions).await,
        Command::Stop(asked) => asking()?.each(Verb::Stop, &asked.sessions).await,
        Command::End(asked) => asking()?.each(Verb::End, &asked.sessions).await,
        Command::Cancel(asked) => asking()?.each(Verb::Cancel, &asked.sessions).await,
        Command::Rm(asked) => asking()?.rm(asked).await,
        Command::Rename { session, name } => asking()?.rename(session, name).await,
        Command::Answer(asked) => asking()?.answer(asked).await,
        Command::Acp(asked) => acp::acp(asked, config, term).await,
        Command::Mcp(asked) => mcp::mcp(asked, config, term).await,
        Command::Files { command } => asking()?.files(command).await,
        Command::Agent { command } => asking()?.agent(command, &config.environment).await,
        Command::Credential { command } => asking()?.credential(command, &config.environment).await,
        Command::Key { command } => asking()?.key(command).await,
        Command::Backup { to } => maintenance::backup(config, term, to),
        Command::Restore { from } => maintenance::restore(config, term, from),
        Command::Audit { command } => maintenance::audit(config, term, command).await,
        Command::Doctor => doctor::doctor(config, term).await,
        Command::Completions { shell } => completions(*shell, term),
        Command::DemoAgent { .. } => Ok(Exit::Done),
    }
}

fn completions(shell: clap_complete::Shell, term: &Term) -> Result<Exit, Failure> {
    let mut script = vec![];
    clap_complete::generate(shell, &mut Cli::command(), "outlast", &mut script);
    term.stream(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
