//! Model, mode and thought level of a live agent: by `session/set_config_option` where the agent offers an
//! option for it, else by `session/set_mode`, else by the older `session/set_model`.

use super::{Acp, Phase, rpc};
use crate::{Cx, Said};
use agent_client_protocol_schema::v1::{
    SessionConfigOptionValue, SetSessionConfigOptionRequest, SetSessionModeRequest,
};
use protocol::{Actor, Code, Fault, How, SessionConfig, Timestamp, limits::HANDSHAKE_SECS};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;

/// Changes that may wait behind one another; more are refused.
const WAITING_CHANGES: usize = 16;

/// What the agent offers, and the changes under way.
#[derive(Debug, Default)]
pub(super) struct Config {
    options: Vec<ConfigOption>,
    has_modes: bool,
    has_models: bool,
    jobs: VecDeque<Job>,
    /// Changes that found the queue full; they are answered when it is empty, so that answers keep their order.
    refused: usize,
    pending: Option<Pending>,
}

#[derive(Debug)]
struct ConfigOption {
    id: String,
    category: Option<String>,
}

#[derive(Debug)]
struct Job {
    purpose: Purpose,
    left: VecDeque<(Setting, String)>,
    taken: SessionConfig,
}

#[derive(Debug)]
enum Purpose {
    /// After the handshake: a failure is a notice.
    Again(How),
    /// A caller asked.
    Asked(Actor),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    Model,
    Mode,
    ThoughtLevel,
}

/// The request that is waited for.
#[derive(Debug)]
struct Pending {
    call: String,
    until: Timestamp,
    way: Way,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Option,
    Mode,
    Model,
}

/// See [`super::Saved`]. Changes under way are not kept: whoever asked for them is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedOffers {
    options: Vec<(String, Option<String>)>,
    modes: bool,
    models: bool,
    pub(super) changing: bool,
}

impl Setting {
    const fn word(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Mode => "mode",
            Self::ThoughtLevel => "thought_level",
        }
    }
}

impl Config {
    pub(super) fn save(&self) -> SavedOffers {
        SavedOffers {
            options: self.options.iter().map(|option| (option.id.clone(), option.category.clone())).collect(),
            modes: self.has_modes,
            models: self.has_models,
            changing: self.pending.is_some(),
        }
    }

    pub(super) fn take_up(offers: SavedOffers) -> Self {
        let options =
            offers.options.into_iter().map(|(id, category)| ConfigOption { id, category }).collect();
        Self { options, has_modes: offers.modes, has_models: offers.models, ..Self::default() }
    }

    /// Takes what an answer to `session/new`, `load` or `resume` offers.
    pub(super) fn advertise(&mut self, answer: &Value) {
        self.offer_options(answer);
        self.has_modes = answer.get("modes").is_some_and(Value::is_object);
        self.has_models = answer.get("models").is_some_and(Value::is_object);
    }

    fn offer_options(&mut self, value: &Value) {
        let Some(options) = value.get("configOptions").and_then(Value::as_array) else { return };
        let text = |option: &Value, key: &str| option.get(key).and_then(Value::as_str).map(str::to_owned);
        self.options = options
            .iter()
            .filter_map(|option| {
                Some(ConfigOption { id: text(option, "id")?, category: text(option, "category") })
            })
            .collect();
    }

    /// An update may change what is offered.
    pub(super) fn hear(&mut self, update: &str) {
        // Most updates are deltas: looked at before they are parsed.
        if update.contains("config_option_update")
            && let Ok(value) = serde_json::from_str::<Value>(update)
            && value.get("sessionUpdate").and_then(Value::as_str) == Some("config_option_update")
        {
            self.offer_options(&value);
        }
    }

    pub(super) fn awaits(&self, call: &str) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.call == call)
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.pending.as_ref().map(|pending| pending.until)
    }

    fn option(&self, setting: Setting) -> Option<&str> {
        let word = setting.word();
        self.options
            .iter()
            .find(|option| option.category.as_deref() == Some(word))
            .or_else(|| self.options.iter().find(|option| option.id == word))
            .map(|option| option.id.as_str())
    }

    /// The ways to change a setting, best first.
    fn ways(&self, setting: Setting) -> impl Iterator<Item = Way> {
        let option = self.option(setting).is_some().then_some(Way::Option);
        let mode = (setting == Setting::Mode && self.has_modes).then_some(Way::Mode);
        let model = (setting == Setting::Model && self.has_models).then_some(Way::Model);
        option.into_iter().chain(mode).chain(model)
    }
}

impl Acp {
    /// Changes settings of the live agent. [`Said::Configured`] follows, once for each call and in order; what
    /// the agent took is recorded before it, also when a later setting failed.
    pub fn configure(&mut self, config: SessionConfig, actor: Actor, cx: &mut Cx) {
        if !matches!(self.phase, Phase::Live { .. }) {
            let fault = Fault::new(Code::AgentFailed, "the agent is not running");
            return cx.say(Said::Configured(Err(fault)));
        }
        if self.config.refused > 0 || self.config.jobs.len() >= WAITING_CHANGES {
            self.config.refused += 1;
            return;
        }
        self.add_job(Purpose::Asked(actor), config, cx);
    }

    pub(super) fn apply_again(&mut self, how: How, cx: &mut Cx) {
        let config = self.begin.config.clone();
        self.add_job(Purpose::Again(how), config, cx);
    }

    fn add_job(&mut self, purpose: Purpose, config: SessionConfig, cx: &mut Cx) {
        let settings = [
            (Setting::Model, config.model),
            (Setting::Mode, config.mode),
            (Setting::ThoughtLevel, config.thought_level),
        ];
        let left = settings.into_iter().filter_map(|(setting, value)| Some((setting, value?))).collect();
        let taken = SessionConfig { model: None, mode: None, thought_level: None };
        self.config.jobs.push_back(Job { purpose, left, taken });
        if self.config.jobs.len() == 1 {
            self.next_setting(cx);
        }
    }

    /// Sends the next request of the first job, or finishes it and goes on with the next job.
    fn next_setting(&mut self, cx: &mut Cx) {
        while let Some(job) = self.config.jobs.front() {
            match job.left.front() {
                Some((setting, _)) => {
                    let setting = *setting;
                    let way = self.config.ways(setting).next();
                    match way {
                        Some(way) => return self.try_way(way, cx),
                        None => self.setting_failed(unsupported(setting), cx),
                    }
                }
                None => self.job_done(None, cx),
            }
        }
        for _ in 0..std::mem::take(&mut self.config.refused) {
            let fault = Fault::new(Code::Busy, "too many changes of settings are waiting; try again");
            cx.say(Said::Configured(Err(fault)));
        }
    }

    fn try_way(&mut self, way: Way, cx: &mut Cx) {
        let call = self.call(cx);
        let Some((setting, value)) = self.config.jobs.front().and_then(|job| job.left.front()) else {
            return;
        };
        let session = self.session().unwrap_or_default().to_owned();
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct SetModel<'a> {
            session_id: &'a str,
            model_id: &'a str,
        }
        cx.send(match way {
            Way::Option => {
                let option = self.config.option(*setting).unwrap_or_default().to_owned();
                let value = SessionConfigOptionValue::value_id(value.clone());
                let params = SetSessionConfigOptionRequest::new(session, option, value);
                rpc::request(&call, "session/set_config_option", &params)
            }
            Way::Mode => {
                rpc::request(&call, "session/set_mode", &SetSessionModeRequest::new(session, value.clone()))
            }
            Way::Model => {
                let params = SetModel { session_id: &session, model_id: value };
                rpc::request(&call, "session/set_model", &params)
            }
        });
        self.config.pending = Some(Pending { call, until: cx.after(HANDSHAKE_SECS), way });
    }

    pub(super) fn config_reply(&mut self, reply: rpc::Reply<'_>, cx: &mut Cx) {
        let Some(Pending { way, .. }) = self.config.pending.take() else { return };
        match reply {
            Ok(result) => {
                if let Some(value) = result.and_then(rpc::read) {
                    self.config.offer_options(&value);
                }
                if let Some(job) = self.config.jobs.front_mut()
                    && let Some((setting, value)) = job.left.pop_front()
                {
                    match setting {
                        Setting::Model => job.taken.model = Some(value),
                        Setting::Mode => job.taken.mode = Some(value),
                        Setting::ThoughtLevel => job.taken.thought_level = Some(value),
                    }
                }
                self.next_setting(cx);
            }
            Err(error) => self.way_failed(way, &error, cx),
        }
    }

    fn way_failed(&mut self, way: Way, error: &rpc::RpcError, cx: &mut Cx) {
        let Some((setting, value)) = self.config.jobs.front().and_then(|job| job.left.front()) else {
            return;
        };
        let not_there = error.code == Some(i64::from(rpc::METHOD_NOT_FOUND));
        let next = self.config.ways(*setting).skip_while(|other| *other != way).nth(1);
        if let (true, Some(next)) = (not_there, next) {
            return self.try_way(next, cx);
        }
        let fault = if not_there {
            unsupported(*setting)
        } else {
            let code = match error.code {
                Some(code) if code == i64::from(rpc::INVALID_PARAMS) => Code::InvalidRequest,
                _ => Code::AgentFailed,
            };
            let text = format!("the agent did not take the {} {value:?}: {}", setting.word(), error.message);
            Fault::new(code, self.say_text(&text))
        };
        self.setting_failed(fault, cx);
        self.next_setting(cx);
    }

    pub(super) fn tick_config(&mut self, cx: &mut Cx) {
        if self.config.deadline().is_none_or(|until| cx.now < until) {
            return;
        }
        self.config.pending = None;
        let text = format!("the agent did not answer a change of settings within {HANDSHAKE_SECS} s");
        self.setting_failed(Fault::new(Code::TimedOut, text), cx);
        self.next_setting(cx);
    }

    /// One setting failed: an asked-for change ends here, one after the handshake goes on with the next.
    fn setting_failed(&mut self, fault: Fault, cx: &mut Cx) {
        let Some(job) = self.config.jobs.front_mut() else { return };
        match job.purpose {
            Purpose::Asked(_) => self.job_done(Some(fault), cx),
            Purpose::Again(_) => {
                let left = job.left.pop_front();
                let word = left.map_or("setting", |(setting, _)| setting.word());
                self.warn(&format!("the {word} was not applied: {fault}"), cx);
            }
        }
    }

    fn job_done(&mut self, failed: Option<Fault>, cx: &mut Cx) {
        let Some(Job { purpose, taken, .. }) = self.config.jobs.pop_front() else { return };
        match purpose {
            Purpose::Again(how) => self.say_ready(how, cx),
            Purpose::Asked(actor) => {
                let any = taken.model.is_some() || taken.mode.is_some() || taken.thought_level.is_some();
                if any {
                    cx.record(actor, taken.clone());
                }
                cx.say(Said::Configured(failed.map_or(Ok(taken), Err)));
            }
        }
    }

    /// The agent is gone: everyone who waits is told.
    pub(super) fn drop_config(&mut self, fault: &Fault, cx: &mut Cx) {
        let config = std::mem::take(&mut self.config);
        let asked = config.jobs.iter().filter(|job| matches!(job.purpose, Purpose::Asked(_))).count();
        for _ in 0..asked + config.refused {
            cx.say(Said::Configured(Err(fault.clone())));
        }
    }
}

fn unsupported(setting: Setting) -> Fault {
    let what = match setting {
        Setting::Model => "its model",
        Setting::Mode => "its mode",
        Setting::ThoughtLevel => "its thought level",
    };
    Fault::new(Code::Unsupported, format!("the agent offers no way to change {what}"))
}
