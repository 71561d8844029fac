//! Loops in the queue and the server: each one takes its steps from a budget that ends it, or is listed with its bound.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Expr, ExprForLoop, ExprLoop, ExprMethodCall, ExprWhile, Ident, ImplItemFn, ItemFn, ItemMod};

use super::bounds::BOUNDS;
use super::source::{files, is_test_only, relative};

/// What ends a loop when its budget is spent: the guard of the queue, and the conditions of the server's loops.
const GUARDS: [&str; 10] = [
    "spend",
    "is_reached",
    "steps_left",
    "steps_max",
    "RUN_STEPS",
    "HTTP_STEPS",
    "STEP_SLOTS",
    "STEP_TUBES",
    "STEP_LINES",
    "PIECE_ENTRIES",
];

/// Methods that walk over all of a container.
const WALKS: [&str; 9] =
    ["iter", "iter_mut", "values", "keys", "range", "drain", "retain", "for_each", "all_http"];

/// Finds the functions with a loop that has no guard.
#[derive(Default)]
struct Unguarded {
    functions: Vec<String>,
    /// Functions have loops without a guard, by name.
    found: BTreeMap<String, usize>,
}

/// Whether a part of the code names a guard.
#[derive(Default)]
struct Guard(bool);

impl<'ast> Visit<'ast> for Guard {
    fn visit_ident(&mut self, ident: &'ast Ident) {
        self.0 |= GUARDS.iter().any(|guard| ident == guard);
    }
}

impl Unguarded {
    fn in_function(&mut self, name: &Ident, inside: impl FnOnce(&mut Self)) {
        self.functions.push(name.to_string());
        inside(self);
        self.functions.pop();
    }

    fn note(&mut self) {
        // A loop outside functions runs at compile time.
        let Some(function) = self.functions.last() else { return };
        // What recounts everything is for tests.
        if !function.starts_with("check") {
            *self.found.entry(function.clone()).or_default() += 1;
        }
    }

    fn note_unless(&mut self, look: impl FnOnce(&mut Guard)) -> bool {
        let mut guard = Guard::default();
        look(&mut guard);
        if !guard.0 {
            self.note();
        }
        guard.0
    }
}

impl<'ast> Visit<'ast> for Unguarded {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_test_only(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.in_function(&function.sig.ident, |unguarded| visit::visit_item_fn(unguarded, function));
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.in_function(&function.sig.ident, |unguarded| visit::visit_impl_item_fn(unguarded, function));
    }

    fn visit_expr_for_loop(&mut self, node: &'ast ExprForLoop) {
        if self.note_unless(|guard| guard.visit_expr_for_loop(node)) {
            // The guard ends the walk that is the head of the loop.
            return self.visit_block(&node.body);
        }
        visit::visit_expr_for_loop(self, node);
    }

    fn visit_expr_while(&mut self, node: &'ast ExprWhile) {
        self.note_unless(|guard| guard.visit_expr_while(node));
        visit::visit_expr_while(self, node);
    }

    fn visit_expr_loop(&mut self, node: &'ast ExprLoop) {
        self.note_unless(|guard| guard.visit_expr_loop(node));
        visit::visit_expr_loop(self, node);
    }

    fn visit_expr_method_call(&mut self, node: &'ast ExprMethodCall) {
        let is_walk = WALKS.iter().any(|walk| node.method == walk);
        let is_array = matches!(*node.receiver, Expr::Array(_));
        if is_walk && !is_array {
            self.note();
        }
        visit::visit_expr_method_call(self, node);
    }
}

fn unguarded(text: &str) -> BTreeMap<String, usize> {
    let mut unguarded = Unguarded::default();
    unguarded.visit_file(&syn::parse_file(text).expect("it is Rust"));
    unguarded.found
}

#[test]
fn every_loop_of_the_queue_the_server_and_tls_has_a_budget_or_a_bound() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    let mut bounds: BTreeMap<(String, String), &str> = BTreeMap::new();
    for (file, function, bound) in BOUNDS {
        assert!(!bound.is_empty(), "{file}: {function} has a bound");
        assert_eq!(
            bounds.insert((file.to_owned(), function.to_owned()), bound),
            None,
            "{file}: {function} is listed once"
        );
    }
    for path in ["queue", "server", "transport"].iter().flat_map(|part| files(&src.join(part))) {
        let file = relative(&src, &path);
        let file = file.to_str().expect("a name in ASCII");
        if file.ends_with("tests.rs") || file.contains("/tests/") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source file");
        let functions = unguarded(&text);
        let is_bounded = !functions.is_empty() && bounds.remove(&(file.to_owned(), "*".to_owned())).is_some();
        for function in functions.into_keys().filter(|_| !is_bounded) {
            if bounds.remove(&(file.to_owned(), function.clone())).is_none() {
                wrong.push(format!(
                    "src/{file}: a loop of {function} has no budget: let Engine::spend end it, or list its bound"
                ));
            }
        }
    }
    wrong.extend(bounds.keys().map(|(file, function)| format!("src/{file}: {function} needs no bound")));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_loop_without_a_budget_is_found() {
    for text in [
        "fn f() { for client in clients { g(client); } }",
        "fn f() { while let Some(job) = jobs.pop() { self.steps += 1; } }",
        "fn f() { loop { g(); } }",
        "impl Engine { fn f(&self) { self.tubes.iter().map(g).sum() } }",
        "fn f() { while self.spend(limit) { for job in jobs.iter() { g(job); } } }",
        "fn f() { self.clients.retain(|client| client.is_open()); }",
    ] {
        assert_eq!(unguarded(text).into_keys().collect::<Vec<_>>(), ["f"], "{text}");
    }
    for text in [
        "fn f() { for client in clients.iter() { if !self.spend(limit) { return; } g(client); } }",
        "fn f() { while !self.is_reached(limit) { g(); } }",
        "fn f() { [1, 2].iter().map(g).sum() }",
        "#[cfg(test)] mod tests { fn f() { loop {} } }",
        "fn check(&self) { self.jobs.iter().for_each(g); }",
    ] {
        assert_eq!(unguarded(text), BTreeMap::new(), "{text}");
    }
}
