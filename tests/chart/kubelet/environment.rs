//! A container's environment, and what its variables mean in its command.

use serde_json::Value;

use super::{list, text};

/// Names and values in their order; `field` knows what a `fieldRef` is. A variable can name those before it.
pub(crate) fn environment(container: &Value, field: &dyn Fn(&str) -> String) -> Vec<(String, String)> {
    let mut known = Vec::new();
    for variable in list(container, "env") {
        let name = text(&variable["name"], "a variable's name").to_owned();
        let path = &variable["valueFrom"]["fieldRef"]["fieldPath"];
        let value = match path.as_str() {
            Some(path) => field(path),
            None => expand(variable["value"].as_str().unwrap_or_default(), &known),
        };
        known.push((name, value));
    }
    known
}

/// `$(NAME)` becomes the variable's value, and stays where there is none; `$$` is a dollar.
pub(crate) fn expand(text: &str, known: &[(String, String)]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out += before;
        let value =
            after.strip_prefix('(').and_then(|after| after.split_once(')')).and_then(|(name, after)| {
                let (_, value) = known.iter().rev().find(|(known, _)| known == name)?;
                Some((value, after))
            });
        rest = match (value, after.strip_prefix('$')) {
            (Some((value, after)), _) => {
                out += value;
                after
            }
            (None, doubled) => {
                out.push('$');
                doubled.unwrap_or(after)
            }
        };
    }
    out + rest
}

#[test]
fn variables_are_expanded_as_kubernetes_does() {
    let known = [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "2".to_owned())];
    for (text, wanted) in [
        ("[$(A)]:$(B)", "[1]:2"),
        ("$(C) $A ${B}", "$(C) $A ${B}"),
        ("$$(A) $$", "$(A) $"),
        ("$", "$"),
        ("", ""),
    ] {
        assert_eq!(expand(text, &known), wanted);
    }
}
