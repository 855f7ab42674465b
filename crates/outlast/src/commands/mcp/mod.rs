//! `mcp`: shells as MCP tools on stdin and stdout, for agents and editors.
//!
//! A bridge to the server of the data folder, which is started in the background when none runs. It copies lines
//! both ways, and looks into them only as far as it must to survive a server that goes away: [`watch`] says what a
//! line is, [`ledger`] keeps what is unanswered, [`connect`] opens the stream, and [`bridge`] copies. stdout belongs
//! to the protocol; words for people go to stderr.

mod bridge;
mod connect;
mod ledger;
mod watch;

use super::mcp_config;
use crate::{
    background::Server,
    cli::Mcp,
    config::Config,
    exit::{Exit, Failure},
    term::Term,
};
use bridge::Bridge;
pub(crate) use connect::Address;
use connect::Hello;
use std::sync::Arc;

pub(crate) async fn mcp(asked: &Mcp, config: &Config, term: &Term) -> Result<Exit, Failure> {
    if let Some(client) = asked.print_config {
        return mcp_config::print(client, asked, config, term);
    }
    let hello = Hello::of_this_process(asked.place, config)?;
    let server = Server::find_or_start(config).await?;
    if let Some(remark) = server.remark() {
        term.note(&remark);
    }
    let bridge = Arc::new(Bridge::new(server, hello, tokio::runtime::Handle::current()));
    let ended = tokio::task::spawn_blocking(move || bridge.run()).await;
    ended.unwrap_or_else(|error| Err(Failure::Broken(format!("the bridge failed: {error}"))))
}
