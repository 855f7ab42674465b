//! The SDK's side of the door: answers what every server answers, and hands tool calls to the table.

use super::{
    calls::Ask,
    exec::{Hearing, Leaving, Live, Notice},
    own::Own,
    tools::{self, Answer},
};
use crate::rest::Shared;
use axum::http::request::Parts;
use protocol::{Code, Fault};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestMethod, CallToolRequestParams, CallToolResponse, CallToolResult,
        CancelledNotificationParam, CompleteRequestMethod, CompleteRequestParams, CompleteResult,
        ConstString as _, ContentBlock, CustomRequest, CustomResult, ErrorCode, Implementation,
        ListPromptsRequestMethod, ListPromptsResult, ListResourceTemplatesRequestMethod,
        ListResourceTemplatesResult, ListResourcesRequestMethod, ListResourcesResult, ListToolsResult,
        PaginatedRequestParams, ProtocolVersion, RequestId, ServerCapabilities, ServerConfig, Tool,
    },
    service::{NotificationContext, RequestContext},
};
use serde::Serialize;
use session::Caller;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{Notify, Semaphore};

mod logging;

/// Cancels that overtook their calls; more are forgotten.
const EARLY_CANCELS: usize = 256;

const INSTRUCTIONS: &str = "Shells that keep their state and outlive this connection. Open one with session_create \
({\"transport\":\"local\"}), run commands with session_exec, close it with session_destroy. session_list finds \
sessions again later. Long commands: yield_secs, then session_poll.";

/// One connection's side of the protocol, or one request's where the protocol has no connections.
pub(super) struct Handler {
    shared: Arc<Shared>,
    visitor: Visitor,
    under_way: Mutex<HashMap<RequestId, Call>>,
    level: logging::Level,
}

/// Who is at the other end.
pub(super) enum Visitor {
    /// Each request has passed the gate, and brings its caller.
    Http,
    /// A bridge. `room` is for calls under way at once.
    Bridge { caller: Caller, own: Arc<Own>, room: Arc<Semaphore> },
}

enum Call {
    UnderWay(Arc<Notify>),
    /// Its cancel came first.
    Cancelled,
}

impl Handler {
    pub(super) fn new(shared: Arc<Shared>, visitor: Visitor) -> Self {
        Self { shared, visitor, under_way: Mutex::default(), level: logging::Level::default() }
    }

    fn caller(&self, context: &RequestContext<RoleServer>) -> Result<Caller, Fault> {
        match &self.visitor {
            Visitor::Bridge { caller, .. } => Ok(caller.clone()),
            Visitor::Http => context
                .extensions
                .get::<Parts>()
                .and_then(|parts| parts.extensions.get::<Caller>())
                .cloned()
                .ok_or_else(|| Fault::new(Code::Unauthorized, "the call has no key")),
        }
    }

    async fn call(
        &self,
        entry: &tools::Entry,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<Answer, Fault> {
        let caller = self.caller(context)?;
        if caller.scope < entry.needs {
            return Err(Fault::new(
                Code::Forbidden,
                format!(
                    "{} needs a key with the scope {}; this key has {}",
                    entry.name, entry.needs, caller.scope
                ),
            ));
        }
        let full = |_| {
            Fault::new(Code::CapacityReached, "too many calls are under way; try again when some have ended")
        };
        let _everybodys = Arc::clone(&self.shared.mcp_calls).try_acquire_owned().map_err(full)?;
        let (own, _room) = match &self.visitor {
            Visitor::Http => (None, None),
            Visitor::Bridge { own, room, .. } => {
                (Some(Arc::clone(own)), Some(Arc::clone(room).try_acquire_owned().map_err(full)?))
            }
        };
        let registered = self.register(context.id.clone());
        let over = context.ct.clone();
        let live = context.meta.get_progress_token().map(|token| Live { peer: context.peer.clone(), token });
        let notice =
            own.is_some().then(|| Notice { peer: context.peer.clone(), request: context.id.clone() });
        let hearing = Hearing {
            live,
            notice,
            asked: Arc::clone(&registered.asked),
            over: Box::pin(async move { over.cancelled().await }),
            leaving: self.leaving(context),
            stopping: self.shared.stopping.clone(),
        };
        let sessions = self.shared.sessions.clone();
        (entry.run)(Ask { sessions, caller, own, arguments: request.arguments, hearing }).await
    }

    /// From 2026-07-28 on, over HTTP, closing the answer's stream is how a call is cancelled; before, it meant nothing.
    fn leaving(&self, context: &RequestContext<RoleServer>) -> Leaving {
        let modern =
            context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        match self.visitor {
            Visitor::Http if modern => Leaving::Cancels,
            Visitor::Http | Visitor::Bridge { .. } => Leaving::Leaves,
        }
    }

    fn register(&self, id: RequestId) -> Registered<'_> {
        let asked = Arc::new(Notify::new());
        if let Some(Call::Cancelled) = self.under_way().insert(id.clone(), Call::UnderWay(Arc::clone(&asked)))
        {
            asked.notify_one();
        }
        Registered { handler: self, id, asked }
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<RequestId, Call>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that can be cancelled, until this is dropped.
struct Registered<'a> {
    handler: &'a Handler,
    id: RequestId,
    asked: Arc<Notify>,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.handler.under_way().remove(&self.id);
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let capabilities = logging::enable(ServerCapabilities::builder().enable_tools().build());
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("outlast", env!("CARGO_PKG_VERSION")).with_title("Outlast"))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::listed().to_vec()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::listed().iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(entry) = tools::find(&request.name) else {
            return Err(ErrorData::invalid_params(format!("there is no tool {:?}", request.name), None));
        };
        match self.call(entry, request, &context).await {
            Ok(answer) => Ok(success(answer).into()),
            Err(fault) => {
                self.level.tell_fault(&context, entry.name, &fault).await;
                Ok(refusal(&fault).into())
            }
        }
    }

    #[expect(deprecated, reason = "for the protocol versions that have it")]
    async fn set_level(
        &self,
        request: rmcp::model::SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.level.set(&request, &context)
    }

    // The SDK would answer these with nothing, as if there could be something.
    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourcesRequestMethod>())
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourceTemplatesRequestMethod>())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    async fn on_cancelled(&self, told: CancelledNotificationParam, _: NotificationContext<RoleServer>) {
        let Some(id) = told.request_id else { return };
        let mut calls = self.under_way();
        match calls.get(&id) {
            Some(Call::UnderWay(asked)) => asked.notify_one(),
            Some(Call::Cancelled) => {}
            None => {
                let early = calls.values().filter(|call| matches!(call, Call::Cancelled)).count();
                if early >= EARLY_CANCELS {
                    calls.retain(|_, call| matches!(call, Call::UnderWay(_)));
                }
                calls.insert(id, Call::Cancelled);
            }
        }
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        // The SDK takes a known method with params of another shape for an unknown one.
        if request.method == CallToolRequestMethod::VALUE {
            return Err(ErrorData::invalid_params(
                "tools/call takes `name`, a string, and `arguments`, an object",
                None,
            ));
        }
        Err(ErrorData::new(
            ErrorCode::METHOD_NOT_FOUND,
            format!("there is no method {:?}", request.method),
            None,
        ))
    }
}

fn success(answer: Answer) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(answer.text)]);
    result.structured_content = Some(answer.data);
    result
}

/// Text only: clients hold structured content to the tool's output schema, also that of errors.
fn refusal(fault: &Fault) -> CallToolResult {
    #[derive(Serialize)]
    struct Body<'a> {
        error: Told<'a>,
    }
    #[derive(Serialize)]
    struct Told<'a> {
        code: Code,
        message: &'a str,
    }
    let body = Body { error: Told { code: fault.code, message: &fault.message } };
    let text = serde_json::to_string(&body).unwrap_or_else(|_| fault.message.to_string());
    CallToolResult::error(vec![ContentBlock::text(text)])
}
