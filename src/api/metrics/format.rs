//! Text formats of `/metrics`, and the choice between them by the `Accept` header.

use std::borrow::Cow;

use axum::http::{HeaderMap, header};

/// Text format of the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricsFormat {
    /// Prometheus's text format, version 0.0.4.
    Classic,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl MetricsFormat {
    /// Selects the format that a request prefers. OpenMetrics must be named; everyone else gets the classic format, as
    /// from Prometheus's own client libraries.
    pub(crate) fn negotiate(headers: &HeaderMap) -> Self {
        let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
        let ranges: Vec<(Option<Self>, f32)> = lines.flat_map(|line| line.split(',')).map(media_range).collect();
        let quality = |format: Self| {
            let fitting = ranges.iter().filter(|(named, _)| *named == Some(format));
            fitting.map(|(_, quality)| *quality).fold(0.0, f32::max)
        };
        let open = quality(Self::OpenMetrics);
        if open > 0.0 && open >= quality(Self::Classic) { Self::OpenMetrics } else { Self::Classic }
    }

    /// Returns the value of `Content-Type`.
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Encodes families of metrics, given in the classic format with an empty line after each.
    pub(super) fn encode(self, text: &str) -> String {
        let mut families: Vec<&str> = text.split("\n\n").map(str::trim).filter(|family| !family.is_empty()).collect();
        // The exporter returns them in the random order of a hash map.
        families.sort_unstable();
        let lines = families.into_iter().flat_map(str::lines);
        match self {
            Self::Classic => lines.flat_map(|line| [line, "\n"]).collect(),
            Self::OpenMetrics => open_metrics(lines),
        }
    }
}

/// Parses a media range and its quality. The format is `None` for ranges without a known one.
fn media_range(range: &str) -> (Option<MetricsFormat>, f32) {
    let mut parts = range.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
    let mut version = None;
    let mut quality = 1.0;
    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
        match name.trim().to_ascii_lowercase().as_str() {
            // A quality that cannot be read excludes the range instead of preferring it.
            "q" => quality = value.trim().parse().unwrap_or(0.0),
            "version" => version = Some(value.trim().trim_matches('"')),
            _ => {}
        }
    }
    let format = match (kind.as_str(), version) {
        ("application/openmetrics-text", None | Some("1.0.0")) => Some(MetricsFormat::OpenMetrics),
        ("text/plain", None | Some("0.0.4")) | ("text/*" | "*/*", _) => Some(MetricsFormat::Classic),
        _ => None,
    };
    (format, quality)
}

/// Converts the classic format to OpenMetrics, which differs in three things: a counter's family is named without
/// `_total` and an info's without `_info`, bounds of buckets are written as floats, and the text ends in `# EOF`.
fn open_metrics<'t>(lines: impl Iterator<Item = &'t str>) -> String {
    let mut text = String::new();
    // The help of a family precedes its kind, which decides its name.
    let mut help = None;
    for line in lines {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let (family, kind) = match (name.strip_suffix("_total"), name.strip_suffix("_info")) {
                (Some(family), _) if kind == "counter" => (family, kind),
                (_, Some(family)) if kind == "gauge" => (family, "info"),
                _ => (name, kind),
            };
            text += &format!("# TYPE {family} {kind}\n");
            // A help text whose kind is missing must not describe the next family.
            if let Some((_, help)) = help.take().filter(|(described, _)| *described == name) {
                text += &format!("# HELP {family} {help}\n");
            }
        } else {
            text += &float_bound(line);
            text += "\n";
        }
    }
    text + "# EOF\n"
}

/// Writes the bound of a bucket as a float: `le="1.0"` instead of `le="1"`.
fn float_bound(line: &str) -> Cow<'_, str> {
    let bound = || {
        // Another label may end in `le` too.
        let start = line.find("le=\"").filter(|at| line[..*at].ends_with(['{', ',']))? + 4;
        let end = start + line[start..].find('"')?;
        line[start..end].bytes().all(|byte| byte.is_ascii_digit()).then_some(end)
    };
    match bound() {
        Some(end) => Cow::Owned(format!("{}.0{}", &line[..end], &line[end..])),
        None => Cow::Borrowed(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn chosen(lines: &[&'static str]) -> MetricsFormat {
        let headers = lines.iter().map(|line| (header::ACCEPT, HeaderValue::from_static(line)));
        MetricsFormat::negotiate(&headers.collect())
    }

    #[test]
    fn open_metrics_goes_to_those_who_name_it() {
        let prometheus_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                            text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let prometheus_3 = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,\
                            application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,\
                            text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for line in
            [prometheus_2, prometheus_3, "application/openmetrics-text", "text/plain, Application/OpenMetrics-Text"]
        {
            assert_eq!(chosen(&[line]), MetricsFormat::OpenMetrics, "{line}");
        }
        assert_eq!(chosen(&["text/plain;q=0.3", "application/openmetrics-text;q=0.5"]), MetricsFormat::OpenMetrics);
    }

    #[test]
    fn everyone_else_gets_the_classic_format() {
        assert_eq!(chosen(&[]), MetricsFormat::Classic);
        for line in [
            "text/plain",
            "*/*",
            "",
            "text/html, application/json",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=high",
            "application/openmetrics-text;q=0.3,text/plain;version=0.0.4;q=0.5",
        ] {
            assert_eq!(chosen(&[line]), MetricsFormat::Classic, "{line}");
        }
    }

    const CLASSIC: &str = "\
# HELP b_seconds Seconds
# TYPE b_seconds histogram
b_seconds_bucket{route=\"/le=\\\"1\",le=\"0.5\"} 1
b_seconds_bucket{route=\"/le=\\\"1\",le=\"1\"} 2
b_seconds_bucket{route=\"/le=\\\"1\",le=\"+Inf\"} 2
b_seconds_sum{route=\"/le=\\\"1\"} 1.25
b_seconds_count{route=\"/le=\\\"1\"} 2

# HELP a_build_info Version
# TYPE a_build_info gauge
a_build_info{version=\"1\"} 1

# HELP a_requests_total Requests
# TYPE a_requests_total counter
a_requests_total{status=\"200\"} 3

";

    #[test]
    fn a_text_differs_between_the_formats_in_names_bounds_and_end() {
        let classic = MetricsFormat::Classic.encode(CLASSIC);
        assert!(
            classic.starts_with("# HELP a_build_info Version\n")
                && classic.ends_with("_count{route=\"/le=\\\"1\"} 2\n")
        );
        assert_eq!(classic.lines().count(), CLASSIC.lines().filter(|line| !line.is_empty()).count());
        let expected = "\
# TYPE a_build info
# HELP a_build Version
a_build_info{version=\"1\"} 1
# TYPE a_requests counter
# HELP a_requests Requests
a_requests_total{status=\"200\"} 3
# TYPE b_seconds histogram
# HELP b_seconds Seconds
b_seconds_bucket{route=\"/le=\\\"1\",le=\"0.5\"} 1
b_seconds_bucket{route=\"/le=\\\"1\",le=\"1.0\"} 2
b_seconds_bucket{route=\"/le=\\\"1\",le=\"+Inf\"} 2
b_seconds_sum{route=\"/le=\\\"1\"} 1.25
b_seconds_count{route=\"/le=\\\"1\"} 2
# EOF
";
        assert_eq!(MetricsFormat::OpenMetrics.encode(CLASSIC), expected);
    }
}
