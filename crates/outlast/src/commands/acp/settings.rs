//! The settings of a session as its journal tells them: model, mode and thought level, in the shape in which the
//! agent offers them. Pure. Other options of an agent are left out, since the server has no call to change them.

use protocol::{Configure, SessionConfig};
use serde_json::{Value, json};

/// What the server can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setting {
    Model,
    Mode,
    ThoughtLevel,
}

impl Setting {
    const ALL: [Self; 3] = [Self::Model, Self::Mode, Self::ThoughtLevel];

    const fn word(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Mode => "mode",
            Self::ThoughtLevel => "thought_level",
        }
    }

    pub(super) fn change(self, value: String) -> Configure {
        let none = Configure::default();
        match self {
            Self::Model => Configure { model: Some(value), ..none },
            Self::Mode => Configure { mode: Some(value), ..none },
            Self::ThoughtLevel => Configure { thought_level: Some(value), ..none },
        }
    }

    fn of(self, config: &SessionConfig) -> Option<&str> {
        match self {
            Self::Model => config.model.as_deref(),
            Self::Mode => config.mode.as_deref(),
            Self::ThoughtLevel => config.thought_level.as_deref(),
        }
    }
}

/// ACP's `modes` and `configOptions`, as they stand.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Settings {
    modes: Option<Value>,
    options: Vec<Value>,
}

impl Settings {
    /// What the agent offered when it started.
    pub(super) fn offered(offers: &Value) -> Self {
        let modes = offers.get("modes").filter(|modes| modes.is_object()).cloned();
        let mut settings = Self { modes, options: vec![] };
        settings.offer_options(offers);
        if settings.option(Setting::Model).is_none()
            && let Some(option) = offers.get("models").and_then(older_models)
        {
            settings.options.push(option);
        }
        settings
    }

    fn offer_options(&mut self, value: &Value) {
        let Some(options) = value.get("configOptions").and_then(Value::as_array) else { return };
        let known = |option: &&Value| {
            option["type"] == "select" && Setting::ALL.iter().any(|setting| names(option, *setting))
        };
        self.options = options.iter().filter(known).cloned().collect();
    }

    /// An update of the agent that changes settings.
    pub(super) fn hear(&mut self, update: &Value) {
        match update["sessionUpdate"].as_str() {
            Some("config_option_update") => self.offer_options(update),
            Some("current_mode_update") => {
                if let Some(mode) = update["currentModeId"].as_str().map(str::to_owned) {
                    self.set(Setting::Mode, &mode);
                }
            }
            _ => {}
        }
    }

    /// What the agent took.
    pub(super) fn take(&mut self, config: &SessionConfig) {
        for setting in Setting::ALL {
            if let Some(value) = setting.of(config) {
                self.set(setting, value);
            }
        }
    }

    fn set(&mut self, setting: Setting, value: &str) {
        if let (Setting::Mode, Some(modes)) = (setting, &mut self.modes) {
            modes["currentModeId"] = json!(value);
        }
        if let Some(at) = self.option(setting) {
            self.options[at]["currentValue"] = json!(value);
        }
    }

    fn option(&self, setting: Setting) -> Option<usize> {
        let word = setting.word();
        self.options
            .iter()
            .position(|option| option["category"] == word)
            .or_else(|| self.options.iter().position(|option| option["id"] == word))
    }

    /// The setting that an option of this id changes.
    pub(super) fn setting(&self, id: &str) -> Option<Setting> {
        Setting::ALL
            .into_iter()
            .find(|setting| self.option(*setting).is_some_and(|at| self.options[at]["id"] == id))
    }

    /// The fields of an answer to `session/new`, `load`, `resume` and `set_config_option`.
    pub(super) fn fields(&self) -> Value {
        let mut fields = json!({});
        if let Some(modes) = &self.modes {
            fields["modes"] = modes.clone();
        }
        if !self.options.is_empty() {
            fields["configOptions"] = json!(self.options);
        }
        fields
    }

    /// The updates that bring an editor from `before` to this.
    pub(super) fn changes(&self, before: &Self) -> Vec<Value> {
        let mut changes = vec![];
        let mode = |settings: &Self| settings.modes.as_ref().map(|modes| modes["currentModeId"].clone());
        if let Some(mode) = mode(self).filter(|now| mode(before).as_ref() != Some(now)) {
            changes.push(json!({"sessionUpdate": "current_mode_update", "currentModeId": mode}));
        }
        if self.options != before.options {
            changes.push(json!({"sessionUpdate": "config_option_update", "configOptions": self.options}));
        }
        changes
    }
}

fn names(option: &Value, setting: Setting) -> bool {
    let word = setting.word();
    option["category"] == word || (option.get("category").is_none_or(Value::is_null) && option["id"] == word)
}

/// The older `models`, as the option that took their place.
fn older_models(models: &Value) -> Option<Value> {
    let offered = models["availableModels"].as_array()?;
    let values: Vec<Value> = offered
        .iter()
        .filter_map(|model| {
            let id = model["modelId"].as_str()?;
            Some(json!({"value": id, "name": model["name"].as_str().unwrap_or(id)}))
        })
        .collect();
    let current = models["currentModelId"].as_str()?;
    Some(json!({
        "id": "model", "name": "Model", "category": "model", "type": "select",
        "currentValue": current, "options": values,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(id: &str, category: &str, current: &str) -> Value {
        json!({"id": id, "name": id, "category": category, "type": "select", "currentValue": current, "options": []})
    }

    #[test]
    fn only_what_can_be_changed_is_offered() {
        let offers = json!({
            "modes": {"currentModeId": "ask", "availableModes": []},
            "configOptions": [option("m", "model", "small"), option("x", "other", "y"),
                {"id": "fast", "name": "Fast", "category": "model", "type": "boolean", "currentValue": true}],
        });
        let settings = Settings::offered(&offers);
        assert_eq!(settings.fields()["configOptions"], json!([option("m", "model", "small")]));
        assert_eq!(settings.setting("m"), Some(Setting::Model));
        for other in ["x", "fast", "mode", ""] {
            assert_eq!(settings.setting(other), None, "{other}");
        }
        assert_eq!(Settings::offered(&json!(null)).fields(), json!({}));
    }

    #[test]
    fn older_models_become_an_option() {
        let models = json!({"currentModelId": "a", "availableModels": [{"modelId": "a", "name": "A"}, {"modelId": "b"}]});
        let settings = Settings::offered(&json!({"models": models}));
        assert_eq!(settings.setting("model"), Some(Setting::Model));
        assert_eq!(settings.fields()["configOptions"][0]["options"][1], json!({"value": "b", "name": "b"}));
    }

    #[test]
    fn a_change_is_seen_wherever_it_comes_from() {
        let offers = json!({
            "modes": {"currentModeId": "ask", "availableModes": []},
            "configOptions": [option("mode", "mode", "ask"), option("level", "thought_level", "low")],
        });
        let before = Settings::offered(&offers);
        let mut now = before.clone();
        assert!(now.changes(&before).is_empty());
        now.take(&SessionConfig {
            model: Some("none offered".into()),
            mode: Some("plan".into()),
            thought_level: None,
        });
        let changes = now.changes(&before);
        assert_eq!(changes[0], json!({"sessionUpdate": "current_mode_update", "currentModeId": "plan"}));
        assert_eq!(changes[1]["configOptions"][0]["currentValue"], "plan");
        let after = now.clone();
        now.hear(&json!({"sessionUpdate": "config_option_update", "configOptions": [option("level", "thought_level", "high")]}));
        now.hear(&json!({"sessionUpdate": "current_mode_update", "currentModeId": "ask"}));
        assert_eq!(now.fields()["configOptions"], json!([option("level", "thought_level", "high")]));
        assert_eq!(now.changes(&after).len(), 2);
    }
}
