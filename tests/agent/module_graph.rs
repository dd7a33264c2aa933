//! The modules of the binary depend on each other in one direction.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The top-level modules, each with those that its code names.
type Graph = BTreeMap<String, BTreeSet<String>>;

fn graph(sources: &Path) -> Graph {
    let mut graph = Graph::new();
    let mut folders = vec![sources.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                // Tests may use what the tested module may not.
                if !path.ends_with("tests") {
                    folders.push(path);
                }
                continue;
            }
            let module = path.strip_prefix(sources).unwrap().iter().next().unwrap().to_str().unwrap();
            let module = module.trim_end_matches(".rs");
            if matches!(module, "lib" | "main") || path.ends_with("tests.rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let mut used = used(&text);
            used.remove(module);
            graph.entry(module.to_owned()).or_default().extend(used);
        }
    }
    graph
}

/// The top-level modules that a file names outside its tests and comments.
fn used(text: &str) -> BTreeSet<String> {
    let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let code =
        code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let names = code.split("crate::").skip(1).flat_map(|rest| {
        let group = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
        group.map_or_else(|| vec![name(rest)], |group| group.split(',').map(name).collect())
    });
    names.filter(|name| !name.is_empty()).collect()
}

fn name(text: &str) -> String {
    text.trim_start().chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect()
}

/// A cycle, as the names on its way; the first is the last.
fn cycle(graph: &Graph) -> Option<Vec<String>> {
    let mut checked = BTreeSet::new();
    graph.keys().find_map(|start| {
        let mut way = Vec::new();
        visit(start, graph, &mut way, &mut checked)
    })
}

fn visit<'g>(
    module: &'g str,
    graph: &'g Graph,
    way: &mut Vec<&'g str>,
    checked: &mut BTreeSet<&'g str>,
) -> Option<Vec<String>> {
    if let Some(place) = way.iter().position(|before| *before == module) {
        return Some(way[place..].iter().copied().chain([module]).map(str::to_owned).collect());
    }
    if !checked.contains(module) {
        way.push(module);
        let used = graph.get(module).into_iter().flatten();
        if let Some(found) = used.into_iter().find_map(|used| visit(used, graph, way, checked)) {
            return Some(found);
        }
        way.pop();
        checked.insert(module);
    }
    None
}

#[test]
fn modules_depend_on_each_other_without_a_cycle() {
    let graph = graph(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(graph["cli"].contains("agent") && graph["agent"].contains("config"), "{graph:?}");
    if let Some(cycle) = cycle(&graph) {
        panic!("a cycle of modules: {}", cycle.join(" -> "));
    }
}

#[test]
fn a_cycle_is_found() {
    let graph = |edges: &[(&str, &str)]| {
        edges.iter().fold(Graph::new(), |mut graph, (from, to)| {
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
            graph
        })
    };
    assert_eq!(cycle(&graph(&[("a", "b"), ("a", "c"), ("b", "c"), ("c", "d")])), None);
    let found = cycle(&graph(&[("a", "b"), ("b", "c"), ("c", "d"), ("d", "b")])).unwrap();
    assert_eq!(found, ["b", "c", "d", "b"]);
}

#[test]
fn what_a_file_uses_is_found() {
    let text = "//! Not crate::comment.\nuse crate::one::Thing;\nuse crate::{two, three::{Four}};\nlet x = crate::four::x();\n\
                \n#[cfg(test)]\nmod tests {\n    use crate::five;\n}\n";
    assert_eq!(used(text), ["one", "two", "three", "four"].map(str::to_owned).into());
}
