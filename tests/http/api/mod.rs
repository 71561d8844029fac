//! The API: `/api/v1`.

mod access;
mod actions;
mod bodies;
mod gate;
mod lists;
mod live;
mod schedules;
mod tags;

use beanring_testkit::http_client::{HttpInMemory, request};
use serde_json::Value;

#[test]
fn the_api_says_where_it_begins() {
    let mut bench = HttpInMemory::writable();
    let mut ask = |method: &str, path: &str| bench.ask(&request(method, path, "", None));
    let index = ask("GET", "/api/v1").json();
    let paths: Vec<&str> = index.as_object().expect("an object").values().filter_map(Value::as_str).collect();
    assert_eq!(paths.len(), 3);
    for path in paths {
        assert_eq!(ask("GET", path).status, 200, "{path}");
    }
    let description = ask("GET", "/api/v1/openapi.yaml");
    assert_eq!(description.body, include_bytes!("../../../docs/openapi.yaml"));
    assert_eq!(description.field("Content-Type"), Some("application/yaml"));
    assert_eq!(ask("HEAD", "/api/v1/openapi.yaml").status, 200);
    assert_eq!(ask("POST", "/api/v1").status, 405);
    assert_eq!(ask("GET", "/api/v1/").status, 404);
}
