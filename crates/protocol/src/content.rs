//! What a prompt says: text, or blocks in the shape ACP gives them.

use serde::{Deserialize, Serialize};

/// A prompt as a caller writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "content must be a string or a list of content blocks")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Content {
    Text(String),
    Blocks(Vec<ContentBlock>),
}

impl Content {
    pub fn into_blocks(self) -> Vec<ContentBlock> {
        match self {
            Self::Text(text) => vec![ContentBlock::Text { text }],
            Self::Blocks(blocks) => blocks,
        }
    }
}

/// One block, named and spelt as ACP's `ContentBlock`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ContentBlock {
    Text {
        text: String,
    },
    Image {
        /// Base64.
        data: String,
        mime_type: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uri: Option<String>,
    },
    Audio {
        /// Base64.
        data: String,
        mime_type: String,
    },
    ResourceLink {
        uri: String,
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
    },
    Resource {
        /// ACP's `EmbeddedResource`: `uri` with `text` or `blob`.
        resource: serde_json::Value,
    },
}

impl ContentBlock {
    /// The block as text for a history or a terminal.
    pub fn plain(&self) -> &str {
        match self {
            Self::Text { text } => text,
            Self::Image { .. } => "[image]",
            Self::Audio { .. } => "[audio]",
            Self::ResourceLink { uri, .. } => uri,
            Self::Resource { resource } => {
                resource.get("text").and_then(serde_json::Value::as_str).unwrap_or("[resource]")
            }
        }
    }
}
