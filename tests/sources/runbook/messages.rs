//! The texts of the sources that end up in a log line. Code that is built only for tests does not count.

use std::collections::BTreeSet;

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItemFn, ItemEnum, ItemFn, ItemImpl, ItemMod, ItemStruct, LitStr, Macro, Meta};

use crate::layers::source::{comment_above, is_test_only};

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Placeholders at the end of a line that may be empty.
const ADDITIONS: [&str; 2] = ["{left_out}", "{hint}"];

/// The comment above a function, an implementation of `Display` or a type with `#[error("...")]` whose texts are a line of the
/// log, or its end.
const MARK: &str = "// docs/RUNBOOK.md lists these messages.";

/// Texts that end up in a log line.
#[derive(Default)]
pub struct Messages {
    /// All of them.
    pub lines: Vec<Line>,
    /// Lines of the levels warn and error, [normalized]. Without those that only pass on another text.
    pub alarms: BTreeSet<String>,
    /// Texts below a [`MARK`], normalized. A line may consist of several.
    pub parts: BTreeSet<String>,
}

#[derive(Debug)]
#[allow(dead_code)]
pub struct Line {
    file: String,
    text: String,
    /// It shows a `Debug` representation.
    pub is_debug: bool,
}

struct Reader<'a> {
    messages: &'a mut Messages,
    file: &'a str,
    lines: Vec<&'a str>,
    /// The marks that are above something.
    marks: BTreeSet<usize>,
    is_marked: bool,
}

impl Messages {
    /// Adds the texts of a file.
    ///
    /// # Panics
    /// If a mark has nothing of these below it.
    pub fn read(&mut self, file: &str, text: &str) {
        let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{file}: {error}"));
        let lines: Vec<&str> = text.lines().collect();
        let count = lines.iter().filter(|line| line.trim() == MARK).count();
        let mut reader = Reader { messages: self, file, lines, marks: BTreeSet::new(), is_marked: false };
        reader.visit_file(&parsed);
        assert_eq!(reader.marks.len(), count, "{file}: marks above a function, an implementation or a type");
    }
}

/// Replaces each placeholder, `{...}` in a source and `<...>` in the runbook, by `<>`.
pub fn normalized(text: &str) -> String {
    let mut rest = ADDITIONS.iter().fold(text, |text, addition| text.trim_end_matches(addition));
    let mut result = String::new();
    while let Some(begin) = rest.find(['{', '<']) {
        let close = if rest[begin..].starts_with('{') { '}' } else { '>' };
        let Some(end) = rest[begin..].find(close) else { break };
        result.push_str(&rest[..begin]);
        result.push_str("<>");
        rest = &rest[begin + end + 1..];
    }
    result + rest
}

impl Reader<'_> {
    fn note(&mut self, text: String, is_debug: bool) {
        if self.is_marked && text.contains(' ') {
            self.messages.parts.insert(normalized(&text));
        }
        let is_debug = is_debug || text.contains(":?}") || text.contains(":#?}");
        self.messages.lines.push(Line { file: self.file.to_owned(), text, is_debug });
    }

    /// Visits what begins here, unless it is built only for tests.
    fn below_mark(&mut self, attributes: &[Attribute], begin: Span, inside: impl FnOnce(&mut Self)) {
        if is_test_only(attributes) {
            return;
        }
        let mark = comment_above(&self.lines, begin.start().line - 1, |line| line == MARK);
        self.marks.extend(mark);
        let outside = self.is_marked;
        self.is_marked |= mark.is_some();
        inside(self);
        self.is_marked = outside;
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, node: &'ast ItemMod) {
        if !is_test_only(&node.attrs) {
            visit::visit_item_mod(self, node);
        }
    }

    fn visit_item_impl(&mut self, node: &'ast ItemImpl) {
        self.below_mark(&node.attrs, node.impl_token.span, |reader| visit::visit_item_impl(reader, node));
    }

    fn visit_impl_item_fn(&mut self, node: &'ast ImplItemFn) {
        let begin = node.sig.fn_token.span;
        self.below_mark(&node.attrs, begin, |reader| visit::visit_impl_item_fn(reader, node));
    }

    fn visit_item_fn(&mut self, node: &'ast ItemFn) {
        self.below_mark(&node.attrs, node.sig.fn_token.span, |reader| visit::visit_item_fn(reader, node));
    }

    fn visit_lit_str(&mut self, node: &'ast LitStr) {
        if self.is_marked {
            self.note(node.value(), false);
        }
    }

    fn visit_item_enum(&mut self, node: &'ast ItemEnum) {
        let begin = node.enum_token.span;
        self.below_mark(&node.attrs, begin, |reader| visit::visit_item_enum(reader, node));
    }

    fn visit_item_struct(&mut self, node: &'ast ItemStruct) {
        let begin = node.struct_token.span;
        self.below_mark(&node.attrs, begin, |reader| visit::visit_item_struct(reader, node));
    }

    // A doc comment is an attribute too.
    fn visit_attribute(&mut self, node: &'ast Attribute) {
        if let Meta::List(list) = &node.meta
            && list.path.is_ident("error")
            && self.is_marked
            && let Some(text) = first_text(list.tokens.clone())
        {
            self.note(text, false);
        }
    }

    fn visit_macro(&mut self, node: &'ast Macro) {
        let name = node.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        let level = LEVELS.iter().position(|level| *level == name);
        let Some(text) = first_text(node.tokens.clone()) else { return };
        if level.is_some_and(|level| level < 2) && normalized(&text) != "<>" {
            self.messages.alarms.insert(normalized(&text));
        }
        if level.is_some() {
            self.note(text, has_question_mark(node.tokens.clone()));
        } else if self.is_marked && !name.contains("assert") {
            self.note(text, false);
        }
    }
}

/// The format of a macro: its first text.
fn first_text(tokens: TokenStream) -> Option<String> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Literal(literal) => {
            syn::parse_str::<LitStr>(&literal.to_string()).ok().map(|text| text.value())
        }
        _ => None,
    })
}

/// Whether a field of a line is recorded by its `Debug` representation.
fn has_question_mark(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == '?'))
}
