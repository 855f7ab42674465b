//! Log messages to the client, for the protocol versions that have them (until 2025-11-25). Nothing is told before
//! the client named a level; then each refused call is a warning.
#![expect(
    deprecated,
    reason = "later versions of the protocol have no logging, and this is for those before"
)]

use protocol::Fault;
use rmcp::{
    ErrorData, RoleServer,
    model::{
        LoggingLevel, LoggingMessageNotificationParam, ProtocolVersion, ServerCapabilities,
        SetLevelRequestMethod, SetLevelRequestParams,
    },
    service::RequestContext,
};
use serde_json::json;
use std::sync::atomic::{AtomicU8, Ordering};

/// The lowest level that is told.
#[derive(Debug)]
pub(super) struct Level(AtomicU8);

/// Above every level.
const NONE: u8 = u8::MAX;
const WARNING: u8 = LoggingLevel::Warning as u8;

impl Default for Level {
    fn default() -> Self {
        Self(AtomicU8::new(NONE))
    }
}

pub(super) fn enable(mut capabilities: ServerCapabilities) -> ServerCapabilities {
    capabilities.logging = Some(rmcp::model::JsonObject::new());
    capabilities
}

impl Level {
    pub(super) fn set(
        &self,
        asked: &SetLevelRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28) {
            return Err(ErrorData::method_not_found::<SetLevelRequestMethod>());
        }
        self.0.store(asked.level as u8, Ordering::Relaxed);
        Ok(())
    }

    pub(super) async fn tell_fault(&self, context: &RequestContext<RoleServer>, tool: &str, fault: &Fault) {
        let level = self.0.load(Ordering::Relaxed);
        if level == NONE || level > WARNING {
            return;
        }
        let data = json!({ "tool": tool, "code": fault.code, "message": fault.message });
        let told = LoggingMessageNotificationParam::new(LoggingLevel::Warning, data).with_logger("outlast");
        // A client that is gone does not hear it.
        let _ = context.peer.notify_logging_message(told).await;
    }
}
