//! `/docs`: the OpenAPI document as one page of plain HTML. No script, nothing from elsewhere.

use serde_json::Value;
use std::fmt::Write as _;

/// Nothing may be loaded, run or framed; the page's own style is all there is.
pub(crate) const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color:#1b1f24;background:#fff}code,pre{font:14px ui-monospace,monospace;background:#f3f4f6;border-radius:4px}\
code{padding:.1em .3em}pre{padding:.8rem;overflow:auto}h2{margin-top:2.5rem;border-bottom:1px solid #d0d7de}\
h3{margin-top:2rem}table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;\
padding:.3rem .6rem .3rem 0;border-bottom:1px solid #eaeef2}nav li{margin:.1rem 0}.method{font-weight:700}\
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}code,pre{background:#161b22}\
a{color:#6cb6ff}td,th,h2{border-color:#30363d}}";

pub(crate) fn page(document: &Value) -> String {
    let mut out = String::new();
    let title = text(&document["info"]["title"]);
    let version = text(&document["info"]["version"]);
    // Writing to a String cannot fail, here and below.
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title} {version}</title>\
         <style>{STYLE}</style></head><body><h1>{title} {version}</h1>{}\
         <p>The same for programs: <a href=\"/openapi.json\">/openapi.json</a>.</p><nav><ul>",
        paragraphs(&document["info"]["description"])
    );
    let operations = operations(document);
    for operation in &operations {
        let _ = write!(
            out,
            "<li><a href=\"#{}\"><code>{} {}</code></a> {}</li>",
            operation.anchor,
            operation.method,
            operation.path,
            text(&operation.value["summary"])
        );
    }
    out.push_str("</ul></nav><h2>Calls</h2>");
    for operation in &operations {
        write_operation(&mut out, operation);
    }
    out.push_str("<h2>Types</h2>");
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        let name = escape(name);
        let pretty = escape(&serde_json::to_string_pretty(schema).unwrap_or_default());
        let _ = write!(out, "<h3 id=\"type-{name}\">{name}</h3><pre>{pretty}</pre>");
    }
    out.push_str("</body></html>");
    out
}

struct Operation<'a> {
    method: String,
    path: String,
    anchor: String,
    value: &'a Value,
}

fn operations(document: &Value) -> Vec<Operation<'_>> {
    let paths = document["paths"].as_object().into_iter().flatten();
    paths
        .flat_map(|(path, methods)| {
            methods.as_object().into_iter().flatten().map(move |(method, value)| Operation {
                method: escape(&method.to_ascii_uppercase()),
                path: escape(path),
                anchor: text(&value["operationId"]),
                value,
            })
        })
        .collect()
}

fn write_operation(out: &mut String, operation: &Operation<'_>) {
    let value = operation.value;
    let _ = write!(
        out,
        "<h3 id=\"{}\"><code><span class=\"method\">{}</span> {}</code></h3><p><b>{}.</b></p>{}",
        operation.anchor,
        operation.method,
        operation.path,
        text(&value["summary"]).trim_end_matches('?'),
        paragraphs(&value["description"])
    );
    if let Some(parameters) = value["parameters"].as_array() {
        out.push_str("<table><tr><th>Parameter</th><th>In</th><th>Is</th><th></th></tr>");
        for parameter in parameters {
            let _ = write!(
                out,
                "<tr><td><code>{}</code></td><td>{}</td><td><code>{}</code></td><td>{}</td></tr>",
                text(&parameter["name"]),
                text(&parameter["in"]),
                escape(&parameter["schema"].to_string()),
                text(&parameter["description"])
            );
        }
        out.push_str("</table>");
    }
    for (kind, body) in value["requestBody"]["content"].as_object().into_iter().flatten() {
        let _ = write!(out, "<p>Takes <code>{}</code>: {}</p>", escape(kind), type_link(&body["schema"]));
    }
    out.push_str("<table><tr><th>Answer</th><th></th><th></th></tr>");
    for (status, response) in value["responses"].as_object().into_iter().flatten() {
        let kinds: Vec<String> = response["content"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(kind, body)| format!("<code>{}</code> {}", escape(kind), type_link(&body["schema"])))
            .collect();
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(status),
            text(&response["description"]),
            kinds.join("<br>")
        );
    }
    out.push_str("</table>");
}

fn type_link(schema: &Value) -> String {
    match schema["$ref"].as_str().and_then(|target| target.rsplit('/').next()) {
        Some(name) => format!("<a href=\"#type-{0}\">{0}</a>", escape(name)),
        None => text(&schema["type"]),
    }
}

fn paragraphs(value: &Value) -> String {
    let text = text(value);
    let mut out = String::new();
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
        // Every second piece between back-ticks is code.
        out.push_str("<p>");
        for (index, piece) in paragraph.split('`').enumerate() {
            let _ = if index % 2 == 0 { write!(out, "{piece}") } else { write!(out, "<code>{piece}</code>") };
        }
        out.push_str("</p>");
    }
    out
}

fn text(value: &Value) -> String {
    escape(value.as_str().unwrap_or_default())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_call_and_loads_nothing() {
        let document = crate::openapi::document();
        let page = page(&document);
        for operation in operations(&document) {
            assert!(page.contains(&format!("id=\"{}\"", operation.anchor)), "{}", operation.anchor);
        }
        for outside in ["<script", "src=", "http://", "@import", "url("] {
            assert!(!page.replace("^https?://", "").contains(outside), "{outside}");
        }
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(paragraphs(&Value::from("a `<b>` & c")), "<p>a <code>&lt;b&gt;</code> &amp; c</p>");
    }
}
