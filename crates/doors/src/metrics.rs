//! Figures for Prometheus: how long requests take, who follows, and what the sessions count themselves.

use axum::http::{Method, StatusCode};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text},
    metrics::{
        MetricType,
        counter::ConstCounter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::Registry,
};
use protocol::Outcome;
use session::Sessions;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// From 0.1 ms, which an in-memory answer takes, to 100 s, beyond every request's time limit.
const BUCKETS: [f64; 18] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 100.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    method: &'static str,
    /// `2xx`, `4xx`, `5xx`.
    status: &'static str,
}

/// A request as the histogram tells it apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    /// The path's pattern, never the path.
    pub(crate) route: &'a str,
    pub(crate) method: &'a Method,
    pub(crate) status: StatusCode,
}

/// The door's own figures.
#[derive(Debug)]
pub(crate) struct Metrics {
    requests: Family<RequestLabels, Histogram, fn() -> Histogram>,
    streams: Gauge,
    connections: Gauge,
    arrived: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            streams: Gauge::default(),
            connections: Gauge::default(),
            arrived: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    pub(crate) fn saw(&self, seen: Seen<'_>, taken: Duration) {
        let labels = RequestLabels {
            route: seen.route.to_owned(),
            method: method_label(seen.method),
            status: match seen.status.as_u16() / 100 {
                2 => "2xx",
                3 => "3xx",
                4 => "4xx",
                5 => "5xx",
                _ => "1xx",
            },
        };
        self.requests.get_or_create(&labels).observe(taken.as_secs_f64());
    }

    pub(crate) fn stream(self: &Arc<Self>) -> Counted {
        Counted::of(self.streams.clone())
    }

    pub(crate) fn connection(&self) -> Counted {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        Counted::of(self.connections.clone())
    }

    /// Everything, in the OpenMetrics text format.
    pub(crate) fn scrape(&self, sessions: &Sessions) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("outlast");
        registry.register(
            "http_request_seconds",
            "From a request's head to its answer's head",
            self.requests.clone(),
        );
        registry.register("http_streams", "Event streams open now", self.streams.clone());
        registry.register("http_connections", "Connections open now", self.connections.clone());
        registry.register_collector(Box::new(SessionFigures(sessions.clone())));
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// Who is at the door, for a server that leaves when nobody comes.
#[derive(Debug, Clone)]
pub struct Visitors(Arc<Metrics>);

impl Visitors {
    pub(crate) fn of(metrics: Arc<Metrics>) -> Self {
        Self(metrics)
    }

    /// Connections and streams open now. A connection with a stream counts twice.
    pub fn open(&self) -> u64 {
        let open = self.0.connections.get() + self.0.streams.get();
        u64::try_from(open).unwrap_or(0)
    }

    /// Connections accepted since the start.
    pub fn arrived(&self) -> u64 {
        self.0.arrived.load(Ordering::Relaxed)
    }
}

/// A method as a label. Only those the table has: anyone can invent more.
fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        _ => "other",
    }
}

/// Counts as one while it lives.
#[derive(Debug)]
pub(crate) struct Counted(Gauge);

impl Counted {
    fn of(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

struct SessionFigures(Sessions);

impl fmt::Debug for SessionFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionFigures")
    }
}

impl Collector for SessionFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let figures = self.0.figures();
        for (name, help, value) in [
            ("live_sessions", "Sessions that have a task now", figures.live_sessions),
            ("occupants", "Agent processes that run now", figures.occupants),
        ] {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let journal = figures.journal;
        for (name, help, value) in [
            ("events", "Events recorded since the start", journal.events),
            ("event_bytes", "Bytes of their bodies", journal.bytes),
            ("commits", "Commits made since the start", journal.commits),
            ("commit_retries", "Commits that a full disk or a lock held up", journal.retries),
            ("commit_micros", "Microseconds that commits took, together", journal.commit_micros),
        ] {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        let mut turns =
            encoder.encode_descriptor("turns", "Turns ended since the start", None, MetricType::Counter)?;
        for (outcome, count) in figures.turns {
            let labels = [("outcome", outcome_label(outcome))];
            ConstCounter::new(count).encode(turns.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

const fn outcome_label(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done",
        Outcome::Failed => "failed",
        Outcome::Cancelled => "cancelled",
        Outcome::TimedOut => "timed_out",
        Outcome::Interrupted => "interrupted",
    }
}
