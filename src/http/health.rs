//! `/livez`, `/readyz` and `/startupz`, in the style of Kubernetes' own components: `ok`, or with `?verbose` one line per
//! check.

use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;

use super::Site;
use super::error::{Code, Error};
use crate::clock;
use crate::duration;
use crate::status::Check;

/// `/livez`: whether the agent's own loop makes progress. Never depends on Consul.
pub(super) async fn live(State(site): State<Site>, RawQuery(query): RawQuery) -> impl IntoResponse {
    let now = clock::now();
    let detail = format!("last round {} s ago", site.watchdog.silence(now).as_secs());
    let check = Check { name: "loop".into(), passed: site.watchdog.is_alive(now), detail };
    answer("livez", &[check], query.as_deref())
}

/// `/readyz`: whether every required slot is held with a fresh lease, of which at least `lease_left` remains.
pub(super) async fn ready(
    State(site): State<Site>,
    RawQuery(query): RawQuery,
) -> Result<impl IntoResponse, Error> {
    let least = lease_left(query.as_deref())?;
    Ok(answer("readyz", &site.snapshot().checks(clock::now(), least), query.as_deref()))
}

/// `/healthz`: the same as `/readyz`.
pub(super) async fn healthy(site: State<Site>, query: RawQuery) -> Result<impl IntoResponse, Error> {
    ready(site, query).await
}

/// `/startupz`: whether all required slots were held at some time.
pub(super) async fn startup(State(site): State<Site>, RawQuery(query): RawQuery) -> impl IntoResponse {
    let snapshot = site.snapshot();
    let detail = if snapshot.started_up {
        "all required slots were held".to_owned()
    } else {
        let waiting = snapshot.checks(clock::now(), Duration::ZERO).into_iter().filter(|check| !check.passed);
        waiting.map(|check| format!("{} {}", check.name, check.detail)).collect::<Vec<_>>().join("; ")
    };
    let check = Check { name: "startup".into(), passed: snapshot.started_up, detail };
    answer("startupz", &[check], query.as_deref())
}

fn answer(endpoint: &str, checks: &[Check], query: Option<&str>) -> (StatusCode, String) {
    let passed = checks.iter().all(|check| check.passed);
    let status = if passed { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if passed && !is_verbose(query) {
        return (status, "ok\n".into());
    }
    // A failure always has a reason: its reader may not be able to repeat the request.
    let mut text = String::new();
    for check in checks {
        let (sign, word) = if check.passed { ('+', "ok") } else { ('-', "failed") };
        text.push_str(&format!("[{sign}]{} {word}: {}\n", check.name, check.detail));
    }
    text.push_str(&format!("{endpoint} check {}\n", if passed { "passed" } else { "failed" }));
    (status, text)
}

/// The value of `lease_left`; zero without it.
fn lease_left(query: Option<&str>) -> Result<Duration, Error> {
    let asked = query.and_then(|query| query.split('&').find_map(|item| item.strip_prefix("lease_left=")));
    asked.map_or(Ok(Duration::ZERO), |asked| {
        duration::parse(asked).map_err(|error| Error::new(Code::BadRequest, format!("lease_left: {error}")))
    })
}

/// `?verbose` or `?verbose=…`, anywhere in the query.
fn is_verbose(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|item| item.split('=').next() == Some("verbose")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbose_is_recognised_as_kubernetes_does() {
        for query in ["verbose", "verbose=1", "verbose=true", "a=b&verbose"] {
            assert!(is_verbose(Some(query)), "{query}");
        }
        for query in [None, Some(""), Some("verbosely"), Some("a=verbose")] {
            assert!(!is_verbose(query), "{query:?}");
        }
    }

    #[test]
    fn how_much_of_the_lease_is_to_be_left() {
        for (query, seconds) in [
            (None, 0),
            (Some("verbose"), 0),
            (Some("lease_left=41s"), 41),
            (Some("verbose&lease_left=1m1s"), 61),
        ] {
            assert_eq!(lease_left(query).unwrap(), Duration::from_secs(seconds), "{query:?}");
        }
        for query in ["lease_left=", "lease_left=41", "lease_left=-1s", "lease_left=%00", "lease_left=soon"] {
            assert!(lease_left(Some(query)).is_err(), "{query}");
        }
    }

    #[test]
    fn a_failure_says_why_even_when_not_asked() {
        let check = |passed| Check { name: "lease".into(), passed, detail: "why".into() };
        let (status, text) = answer("readyz", &[check(true), check(false)], None);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(text, "[+]lease ok: why\n[-]lease failed: why\nreadyz check failed\n");
        assert_eq!(answer("readyz", &[check(true)], None), (StatusCode::OK, "ok\n".into()));
    }
}
