//! The agent asks before it acts. A request is an event before anybody can answer it, and its answer is one
//! before the agent hears it.

use super::{Acp, Oddity, rpc, saved, verdict};
use crate::Cx;
use protocol::{
    Actor, Answer, Code, Fault, PermissionAnswered, PermissionOption, PermissionRequested, Raw, Seq,
    Timestamp, limits::PERMISSION_SECS,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Requests that may be open at once; more are answered cancelled.
const OPEN_PERMISSIONS: usize = 64;

/// A request that waits for its answer.
#[derive(Debug)]
pub(super) struct Permission {
    seq: Seq,
    /// The agent's own id for the request.
    call: Raw,
    options: Vec<String>,
    pub(super) until: Timestamp,
}

/// See [`super::Saved`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedPermission {
    seq: Seq,
    call: Raw,
    options: Vec<String>,
    left: i64,
}

impl Permission {
    pub(super) fn save(&self, now: Timestamp) -> SavedPermission {
        SavedPermission {
            seq: self.seq,
            call: self.call.clone(),
            options: self.options.clone(),
            left: saved::left(self.until, now),
        }
    }

    pub(super) fn take_up(saved: SavedPermission, now: Timestamp) -> Self {
        Self {
            seq: saved.seq,
            call: saved.call,
            options: saved.options,
            until: saved::until(saved.left, now),
        }
    }
}

impl Acp {
    pub(super) fn permission_requested(&mut self, id: &RawValue, params: Option<&RawValue>, cx: &mut Cx) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            #[serde(borrow)]
            session_id: Cow<'a, str>,
            #[serde(borrow)]
            tool_call: &'a RawValue,
            options: Vec<PermissionOption>,
        }
        let params_text = params.map_or("", RawValue::get);
        let Ok(Params { session_id, tool_call, options }) = serde_json::from_str(params_text) else {
            self.odd(Oddity::Junk, "a permission request that cannot be read", params_text.as_bytes(), cx);
            return cx.send(rpc::error(id, rpc::INVALID_PARAMS, "sessionId, toolCall or options are wrong"));
        };
        if self.session() != Some(&*session_id) {
            let text = params_text.as_bytes();
            self.odd(Oddity::Junk, "a permission request for another session", text, cx);
            return cx.send(rpc::error(id, rpc::INVALID_PARAMS, "no such session"));
        }
        self.flush(cx);
        let redactor = &self.begin.redactor;
        let clean = |text: &str| redactor.text(text).into_owned();
        let recorded = options.iter().map(|option| PermissionOption {
            option_id: clean(&option.option_id),
            name: clean(&option.name),
            kind: clean(&option.kind),
        });
        let request = PermissionRequested {
            turn: self.turn.as_ref().map(|turn| turn.id),
            tool_call: redactor.raw(Raw::from(tool_call)),
            options: recorded.collect(),
        };
        let seq = cx.record(Actor::Agent, request);
        let judged = verdict::judge(&self.begin.terms.policy, &rpc::read(tool_call).unwrap_or_default());
        let chosen = verdict::option(judged.verdict, &options).map(str::to_owned);
        let secs = self.begin.terms.policy.permission_secs.unwrap_or(PERMISSION_SECS);
        let permission = Permission {
            seq,
            call: Raw::from(id),
            options: options.into_iter().map(|option| option.option_id).collect(),
            until: cx.after(secs),
        };
        let wanted = self.turn.as_ref().is_some_and(|turn| !turn.is_stopping());
        match chosen {
            _ if !wanted => give_up(&permission, "no turn is running that could use it", cx),
            Some(option_id) => {
                let recorded =
                    Answer::Selected { option_id: self.begin.redactor.text(&option_id).into_owned() };
                close(&permission, &recorded, Actor::System, Some(&judged.why), cx);
                reply(&permission, &Answer::Selected { option_id }, cx);
            }
            None if self.permissions.len() < OPEN_PERMISSIONS => self.permissions.push(permission),
            None => give_up(&permission, "too many requests are open", cx),
        }
    }

    /// Answers an open request.
    pub fn answer(
        &mut self,
        permission: Seq,
        answer: Answer,
        actor: Actor,
        cx: &mut Cx,
    ) -> Result<(), Fault> {
        let Some(place) = self.permissions.iter().position(|open| open.seq == permission) else {
            let text =
                format!("no permission request {permission} is open; it may have been answered already");
            return Err(Fault::new(Code::PermissionNotFound, text));
        };
        let open = &self.permissions[place];
        // Clients know the options as they were recorded.
        let redactor = &self.begin.redactor;
        let answer = match answer {
            Answer::Cancelled => Answer::Cancelled,
            Answer::Selected { option_id } => {
                let named = open.options.iter().find(|option| redactor.text(option) == option_id);
                let Some(option) = named else {
                    let known = open.options.iter().map(|option| redactor.text(option)).collect::<Vec<_>>();
                    let text = format!("{option_id:?} is not one of the options: {}", known.join(", "));
                    return Err(Fault::invalid(text));
                };
                Answer::Selected { option_id: option.clone() }
            }
        };
        let open = self.permissions.remove(place);
        let recorded = match &answer {
            Answer::Cancelled => Answer::Cancelled,
            Answer::Selected { option_id } => {
                Answer::Selected { option_id: self.begin.redactor.text(option_id).into_owned() }
            }
        };
        close(&open, &recorded, actor, None, cx);
        reply(&open, &answer, cx);
        Ok(())
    }

    /// Answers what is open: the turn that asked is over or told to stop.
    pub(super) fn cancel_permissions(&mut self, cx: &mut Cx) {
        for open in std::mem::take(&mut self.permissions) {
            give_up(&open, "the turn that asked has ended, or was told to", cx);
        }
    }

    /// Closes what is open when nobody is left to hear the answer.
    pub(super) fn close_permissions(&mut self, cx: &mut Cx) {
        for open in std::mem::take(&mut self.permissions) {
            close(&open, &Answer::Cancelled, Actor::System, Some("the agent is gone"), cx);
        }
    }

    pub(super) fn tick_permissions(&mut self, cx: &mut Cx) {
        let now = cx.now;
        let (late, open) =
            std::mem::take(&mut self.permissions).into_iter().partition(|open| now >= open.until);
        self.permissions = open;
        let late: Vec<Permission> = late;
        for open in &late {
            give_up(open, "nobody answered in time", cx);
        }
    }
}

fn give_up(permission: &Permission, why: &str, cx: &mut Cx) {
    close(permission, &Answer::Cancelled, Actor::System, Some(why), cx);
    reply(permission, &Answer::Cancelled, cx);
}

fn close(permission: &Permission, answer: &Answer, actor: Actor, why: Option<&str>, cx: &mut Cx) {
    let why = why.map(str::to_owned);
    cx.record(actor, PermissionAnswered { permission: permission.seq, answer: answer.clone(), why });
}

/// After [`close`], so that the answer is durable before the agent acts on it.
fn reply(permission: &Permission, answer: &Answer, cx: &mut Cx) {
    /// Our own `Answer` is spelt as ACP's outcome.
    #[derive(Serialize)]
    struct Reply<'a> {
        outcome: &'a Answer,
    }
    cx.send(rpc::result(permission.call.as_raw(), &Reply { outcome: answer }));
}
