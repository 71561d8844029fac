//! Loops in the queue, the server and TLS: each one takes its steps from a budget that ends it, or a comment above it says what
//! bounds it.

use std::collections::BTreeSet;
use std::path::Path;

use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Expr, Token};

use super::source::{Module, SRC, comment_above, files, is_test_only};
use super::{LIBRARY, read};

const CHECKED: [&str; 3] = ["queue", "server", "transport"];

/// Methods of the budget. A loop that names one ends when its limit is reached.
const GUARDS: [&str; 2] = ["spend", "is_reached"];

/// Methods that walk over a container. Those of the sources that return an iterator do so too.
const WALKS: [&str; 8] = ["iter", "iter_mut", "values", "keys", "range", "drain", "retain", "for_each"];

/// Finds the loops and walks that have no guard.
struct Unguarded<'a> {
    walks: &'a BTreeSet<&'a str>,
    /// The lines at which the functions around begin.
    functions: Vec<usize>,
    found: Vec<Found>,
}

struct Found {
    what: String,
    line: usize,
    /// The line at which its function begins.
    function: usize,
}

/// True if the code names a guard.
#[derive(Default)]
struct Guard(bool);

impl<'ast> Visit<'ast> for Guard {
    fn visit_ident(&mut self, ident: &'ast syn::Ident) {
        self.0 |= GUARDS.iter().any(|guard| ident == guard);
    }
}

impl Unguarded<'_> {
    fn in_function(
        &mut self,
        attributes: &[syn::Attribute],
        token: &Token![fn],
        inside: impl FnOnce(&mut Self),
    ) {
        if !is_test_only(attributes) {
            self.functions.push(token.span.start().line);
            inside(self);
            self.functions.pop();
        }
    }

    fn note(&mut self, what: String, span: proc_macro2::Span) {
        // A loop outside functions runs at compile time.
        if let Some(&function) = self.functions.last() {
            self.found.push(Found { what, line: span.start().line, function });
        }
    }

    /// Notes a loop, unless it has a guard. Returns true if it has.
    fn note_unless(&mut self, what: &str, span: proc_macro2::Span, look: impl FnOnce(&mut Guard)) -> bool {
        let mut guard = Guard::default();
        look(&mut guard);
        if !guard.0 {
            self.note(format!("`{what}`"), span);
        }
        guard.0
    }
}

impl<'ast> Visit<'ast> for Unguarded<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test_only(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_impl(&mut self, node: &'ast syn::ItemImpl) {
        if !is_test_only(&node.attrs) {
            visit::visit_item_impl(self, node);
        }
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.in_function(&node.attrs, &node.sig.fn_token, |inner| visit::visit_item_fn(inner, node));
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.in_function(&node.attrs, &node.sig.fn_token, |inner| visit::visit_impl_item_fn(inner, node));
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        self.in_function(&node.attrs, &node.sig.fn_token, |inner| visit::visit_trait_item_fn(inner, node));
    }

    fn visit_expr_for_loop(&mut self, node: &'ast syn::ExprForLoop) {
        let is_array = matches!(*node.expr, Expr::Array(_));
        if !is_array && self.note_unless("for", node.for_token.span, |guard| guard.visit_expr_for_loop(node))
        {
            // The guard ends the walk that is the head of the loop.
            return self.visit_block(&node.body);
        }
        visit::visit_expr_for_loop(self, node);
    }

    fn visit_expr_while(&mut self, node: &'ast syn::ExprWhile) {
        self.note_unless("while", node.while_token.span, |guard| guard.visit_expr_while(node));
        visit::visit_expr_while(self, node);
    }

    fn visit_expr_loop(&mut self, node: &'ast syn::ExprLoop) {
        self.note_unless("loop", node.loop_token.span, |guard| guard.visit_expr_loop(node));
        visit::visit_expr_loop(self, node);
    }

    fn visit_expr_method_call(&mut self, node: &'ast syn::ExprMethodCall) {
        let name = node.method.to_string();
        if self.walks.contains(&*name) && !matches!(*node.receiver, Expr::Array(_)) {
            self.note(format!("`{name}()`"), node.method.span());
        }
        visit::visit_expr_method_call(self, node);
    }

    fn visit_macro(&mut self, node: &'ast syn::Macro) {
        let arguments = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(node.tokens.clone());
        for argument in arguments.iter().flatten() {
            Visit::visit_expr(self, argument);
        }
    }
}

/// The names that follow this word in a text, each with the rest of the text.
fn names<'a>(text: &'a str, word: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    text.split(word).skip(1).map(|rest| rest.split_at(rest.find(is_no_letter).unwrap_or(rest.len())))
}

fn is_no_letter(character: char) -> bool {
    !character.is_alphanumeric() && character != '_'
}

/// The functions of a text: of those that return an iterator, or of the others.
fn functions(text: &str, are_iterators: bool) -> impl Iterator<Item = &str> {
    let is_iterator = |rest: &str| {
        let signature = rest.split(['{', ';']).next().unwrap_or_default();
        signature.rsplit_once("-> impl ").is_some_and(|(_, returned)| returned.contains("Iterator<"))
    };
    names(text, "fn ").filter(move |(_, rest)| is_iterator(rest) == are_iterators).map(|(name, _)| name)
}

/// How a permit begins: of the loops of a statement or a function, and of all those of a file.
const PERMITS: [&str; 2] = ["// Bounded by ", "//! Bounded by "];

/// Bounds without a name of their own: who calls the loop, what was paid before, when no client is served, and numbers.
const REASONS: [&str; 9] = [
    "its caller",
    "earlier ",
    "recovery",
    "the configuration",
    "the end of the server",
    "the compiler",
    "the one ",
    "the two ",
    "these ",
];

fn is_permit(line: &str) -> bool {
    PERMITS.iter().any(|begin| line.trim_start().starts_with(begin))
}

/// Returns what is wrong with the permit that begins at this line.
fn flaw(lines: &[&str], at: usize, known: &BTreeSet<&str>) -> Option<String> {
    let comment = lines[at..].iter().map(|line| line.trim()).take_while(|line| line.starts_with("//"));
    let text: Vec<&str> = comment.map(|line| line.trim_start_matches(['/', '!', ' '])).collect();
    let text = text.join(" ");
    let bound = text.strip_prefix("Bounded by ")?;
    if !bound.ends_with('.') || !bound.contains(' ') {
        return Some("a permit is a sentence that says what bounds the loop".to_owned());
    }
    let is_reason = REASONS.iter().any(|reason| bound.starts_with(reason));
    let (name, _) = bound.split_once(':').unwrap_or_default();
    if !is_reason && (name.is_empty() || name.contains(' ')) {
        return Some(
            "a permit begins with the name of a Cost, a constant or a function, and a colon".to_owned(),
        );
    }
    let words = bound.split(is_no_letter).filter(|word| word.contains('_'));
    let first = bound.split_once(':').and_then(|(name, _)| name.rsplit(is_no_letter).next());
    let mut names = words.chain(first.filter(|name| *name == name.to_uppercase()));
    names.find(|name| !known.contains(name)).map(|name| format!("no constant or function is named {name}"))
}

/// Returns the violations of a text, each after its line. `walks` are methods, and `known` the names that a permit may use.
fn wrongs(text: &str, walks: &BTreeSet<&str>, known: &BTreeSet<&str>) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut unguarded = Unguarded { walks, functions: Vec::new(), found: Vec::new() };
    unguarded.visit_file(&syn::parse_file(text).expect("it is Rust"));
    let head = lines.iter().take_while(|line| line.starts_with("//!")).position(|line| is_permit(line));
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    for Found { what, line, function } in unguarded.found {
        let permit =
            [line, function].into_iter().find_map(|line| comment_above(&lines, line - 1, is_permit)).or(head);
        if let Some(permit) = permit {
            used.insert(permit);
        } else {
            wrong.push(format!("{line}: {what} has no budget"));
        }
    }
    for at in (0..lines.len()).filter(|at| is_permit(lines[*at])) {
        let idle = (!used.contains(&at)).then(|| "a permit, but no loop below needs it".to_owned());
        wrong.extend(idle.or_else(|| flaw(&lines, at, known)).map(|flaw| format!("{}: {flaw}", at + 1)));
    }
    wrong
}

#[test]
fn every_loop_of_the_queue_the_server_and_tls_has_a_budget_or_a_bound() {
    let is_checked = |module: &&Module| module.path.first().is_some_and(|top| CHECKED.contains(&&**top));
    let checked: BTreeSet<_> = LIBRARY.0.iter().filter(is_checked).map(|module| &module.file).collect();
    let checked: Vec<_> = checked.into_iter().map(|file| (read(file), file)).collect();
    let all: Vec<_> = files(Path::new(SRC)).iter().map(|file| read(file)).collect();
    let named = |word| all.iter().flat_map(move |text| names(text, word)).map(|(name, _)| name);
    let known = ["const ", "static ", "fn "].into_iter().flat_map(named).collect();
    let mut walks: BTreeSet<&str> = checked.iter().flat_map(|(text, _)| functions(text, true)).collect();
    for name in checked.iter().flat_map(|(text, _)| functions(text, false)) {
        walks.remove(name);
    }
    assert!(walks.len() > 5, "iterators are found");
    walks.extend(WALKS);

    let mut wrong = Vec::new();
    for (text, path) in &checked {
        let wrongs = wrongs(text, &walks, &known);
        wrong.extend(wrongs.into_iter().map(|wrong| format!("src/{}:{wrong}", path.display())));
    }
    assert!(
        wrong.is_empty(),
        "\n{}\nLet Budget::spend end a loop, or put a comment above its statement, above its function, or into the \
         head of its file:\n    // Bounded by NAME: what the constant NAME limits here.",
        wrong.join("\n")
    );
}

/// The violations of a text whose walks are `iter`, `retain` and `all_jobs`. `JOBS_MAX` is known.
fn wrongs_of(text: &str) -> Vec<String> {
    wrongs(text, &BTreeSet::from(["iter", "retain", "all_jobs"]), &BTreeSet::from(["JOBS_MAX"]))
}

#[test]
fn a_loop_without_a_budget_is_found() {
    for text in [
        "fn f() { for client in clients { g(client); } }",
        "fn f() { while let Some(job) = jobs.pop() { self.steps += 1; } }",
        "fn f() { loop { g(); } }",
        "impl Engine { fn f(&self) { self.tubes.iter().map(g).sum() } }",
        "fn f() { while self.spend(limit) { for job in jobs { g(job); } } }",
        "fn f() { self.clients.retain(|client| client.is_open()); }",
        "fn f() { self.all_jobs().count() }",
        "fn f() { assert!(x, \"{}\", self.jobs.iter().count()); }",
        "fn f() { for most in [self.jobs.iter().max(), None] { g(most); } }",
        "fn check(&self) { self.jobs.iter().max() }",
    ] {
        let wrong = wrongs_of(text);
        assert!(wrong.len() == 1 && wrong[0].starts_with("1: `"), "{text}: {wrong:?}");
    }
    for text in [
        "fn f() { for client in clients.iter() { if !self.spend(limit) { return; } g(client); } }",
        "fn f() { while !self.is_reached(limit) { g(); } }",
        "fn f() { [1, 2].iter().map(g).sum() }",
        "fn f() { for tube in [from, to] { g(tube); } }",
        "#[cfg(test)] mod tests { fn f() { loop {} } }",
        "impl Queue { #[cfg(test)] fn f() { loop {} } }",
    ] {
        assert_eq!(wrongs_of(text), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn a_permit_counts_for_what_is_below_it() {
    const LOOP: &str = "for job in jobs.iter() { g(job); }";
    for text in [
        "fn f() {\n    // Bounded by JOBS_MAX: the jobs of one batch.\n    LOOP\n}",
        "fn f() {\n    // Why.\n    // Bounded by JOBS_MAX: the jobs of\n    // one batch.\n    LOOP\n}",
        "fn f() {\n    // Bounded by the two tubes.\n    let sum: u32 = jobs\n        .iter()\n        .sum();\n}",
        "/// Of f.\n// Bounded by its caller: a test.\n#[inline]\nfn f() {\n    LOOP\n    LOOP\n}",
        "//! All.\n//! Bounded by recovery: no client is there.\n\nfn f() {\n    LOOP\n}",
    ] {
        assert_eq!(wrongs_of(&text.replace("LOOP", LOOP)), Vec::<String>::new(), "{text}");
    }
    for (text, permit, line) in [
        ("fn f() {\n    // Bounded by the two tubes.\n    g();\n    LOOP\n}", 2, 4),
        ("// Bounded by the two tubes.\nfn g() {}\nfn f() {\n    LOOP\n}", 1, 4),
        ("fn f() {\n    // Bounded by the two tubes.\n    if x {\n        LOOP\n    }\n}", 2, 4),
    ] {
        let expected = [
            format!("{line}: `for` has no budget"),
            format!("{line}: `iter()` has no budget"),
            format!("{permit}: a permit, but no loop below needs it"),
        ];
        assert_eq!(wrongs_of(&text.replace("LOOP", LOOP)), expected, "{text}");
    }
    for (permit, expected) in [
        ("// Bounded by two tubes", "is a sentence"),
        ("// Bounded by JOBS_MAX.", "is a sentence"),
        ("// Bounded by TUBES_MAX: two tubes.", "named TUBES_MAX"),
        ("// Bounded by a batch: at most TUBES_MAX jobs.", "begins with the name"),
        ("// Bounded by the records of one receive.", "begins with the name"),
        ("// Bounded by SLOTS: one step.", "named SLOTS"),
    ] {
        let wrong = wrongs_of(&format!("fn f() {{\n    {permit}\n    {LOOP}\n}}"));
        assert!(wrong.len() == 1 && wrong[0].contains(expected), "{permit}: {wrong:?}");
    }
}
