//! The paths that the code of a module refers to. Code that is built only for tests does not count.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, Meta, UseTree};

pub const SRC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

/// A module of the crate.
pub struct Module {
    /// The names from the root of the crate. The root itself has none.
    pub path: Vec<String>,
    /// The file, relative to `src`.
    pub file: PathBuf,
    pub uses: Uses,
}

/// The references of the code of one module.
#[derive(Default)]
pub struct Uses {
    /// Paths in the crate, from its root. A star at the end stands for a glob. An empty path is the root.
    pub own: BTreeSet<Vec<String>>,
    /// Other paths, which begin with a name in scope or with a crate.
    pub others: BTreeSet<Vec<String>>,
    /// The module has unsafe code.
    pub is_unsafe: bool,
}

/// Follows the `mod` items from this root. Returns every module that is built without tests, and every file that was read or
/// that is built only for tests.
pub fn modules(root: &str) -> (Vec<Module>, BTreeSet<PathBuf>) {
    let src = Path::new(SRC);
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    let mut left = vec![(Vec::new(), PathBuf::from(root))];
    while let Some((path, file)) = left.pop() {
        known.insert(file.clone());
        let text = fs::read_to_string(src.join(&file)).expect("a source file");
        let read = read(&path, &text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        for (child, is_test) in read.children {
            let child_file = file_of(&file, &path, &child);
            if is_test {
                known.insert(child_file.clone());
                known
                    .extend(files(&src.join(folder_of(&child_file))).into_iter().map(|file| relative(&file)));
            } else {
                left.push((child, child_file));
            }
        }
        found.extend(read.modules.into_iter().map(|(path, uses)| Module { path, file: file.clone(), uses }));
    }
    (found, known)
}

/// All source files below a directory.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Finds a comment above the statement or the item to which this line belongs. Lines are counted from 0.
pub fn comment_above(lines: &[&str], line: usize, is_sought: impl Fn(&str) -> bool) -> Option<usize> {
    for above in (0..line).rev() {
        let text = lines[above].trim();
        if is_sought(text) {
            return Some(above);
        }
        let code = text.split(" // ").next().unwrap_or_default();
        let is_end = text.is_empty() || code.ends_with([';', '{', '}', ',']) || code.ends_with("=>");
        if is_end && !text.starts_with("//") {
            return None;
        }
    }
    None
}

pub fn relative(file: &Path) -> PathBuf {
    file.strip_prefix(SRC).expect("a path below the sources").to_owned()
}

/// The folder of the modules below the module in `file`.
fn folder_of(file: &Path) -> PathBuf {
    if file.ends_with("mod.rs") { file.with_file_name("") } else { file.with_extension("") }
}

/// The file of the module `child` of the module `path`, which is in `file`.
fn file_of(file: &Path, path: &[String], child: &[String]) -> PathBuf {
    let dir = if path.is_empty() { file.with_file_name("") } else { folder_of(file) };
    let dir = child[path.len()..].iter().fold(dir, |dir, name| dir.join(name));
    let plain = dir.with_extension("rs");
    if Path::new(SRC).join(&plain).is_file() { plain } else { dir.join("mod.rs") }
}

/// The modules of one file, and the modules that it declares in other files.
pub struct Read {
    pub modules: Vec<(Vec<String>, Uses)>,
    /// True for a module that is built only for tests.
    children: Vec<(Vec<String>, bool)>,
}

/// Reads the text of the file of the module `path`.
pub fn read(path: &[String], text: &str) -> syn::Result<Read> {
    let file = syn::parse_file(text)?;
    let mut reader = Reader {
        path: path.to_vec(),
        uses: Uses::default(),
        read: Read { modules: Vec::new(), children: Vec::new() },
    };
    if !is_test_only(&file.attrs) {
        reader.visit_file(&file);
    }
    let Reader { path, uses, mut read } = reader;
    read.modules.push((path, uses));
    Ok(read)
}

struct Reader {
    path: Vec<String>,
    uses: Uses,
    read: Read,
}

impl Reader {
    /// Records a path, from the root of the crate if the path gives it.
    fn note(&mut self, mut names: Vec<String>) {
        let mut from = match names.first().map(String::as_str) {
            // The program names the library.
            Some("crate" | "beanring") => Vec::new(),
            Some("self" | "super") => self.path.clone(),
            _ => {
                self.uses.others.insert(names);
                return;
            }
        };
        names.reverse();
        while let Some(name) = names.pop() {
            match name.as_str() {
                "super" => drop(from.pop()),
                "crate" | "beanring" | "self" => {}
                _ => from.push(name),
            }
        }
        self.uses.own.insert(from);
    }

    fn note_tree(&mut self, mut names: Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                names.push(path.ident.to_string());
                self.note_tree(names, &path.tree);
            }
            UseTree::Name(name) => self.note_end(names, name.ident.to_string()),
            UseTree::Rename(rename) => self.note_end(names, rename.ident.to_string()),
            UseTree::Glob(_) => self.note_end(names, "*".to_owned()),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.note_tree(names.clone(), tree));
            }
        }
    }

    fn note_end(&mut self, mut names: Vec<String>, last: String) {
        // In a group, `self` is the path before the group.
        if last != "self" || names.is_empty() {
            names.push(last);
        }
        self.note(names);
    }

    /// The tokens of a macro may or may not be code, so every path in them counts.
    fn note_tokens(&mut self, before: &[String], tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        let mut names = before.to_vec();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(ident) => {
                    self.uses.is_unsafe |= ident == "unsafe";
                    names.push(ident.to_string());
                    if !is_colon(tokens.peek()) {
                        self.note(std::mem::replace(&mut names, before.to_vec()));
                    }
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && is_colon(tokens.peek()) => {
                    tokens.next();
                    match tokens.peek() {
                        Some(TokenTree::Ident(_)) => {}
                        Some(TokenTree::Group(group)) if names.len() > before.len() => {
                            let stream = group.stream();
                            tokens.next();
                            self.note_tokens(&names, stream);
                            names = before.to_vec();
                        }
                        Some(TokenTree::Punct(punct)) if punct.as_char() == '*' => {
                            names.push("*".to_owned());
                            self.note(std::mem::replace(&mut names, before.to_vec()));
                        }
                        _ => self.note(std::mem::replace(&mut names, before.to_vec())),
                    }
                }
                TokenTree::Group(group) => {
                    names = before.to_vec();
                    self.note_tokens(&[], group.stream());
                }
                _ => names = before.to_vec(),
            }
        }
    }

    fn in_module(&mut self, name: String, inside: impl FnOnce(&mut Self)) {
        self.path.push(name);
        let outside = std::mem::take(&mut self.uses);
        inside(self);
        let uses = std::mem::replace(&mut self.uses, outside);
        self.read.modules.push((self.path.clone(), uses));
        self.path.pop();
    }
}

/// Visits code, unless it is built only for tests. Test-only code of another kind counts as code of the server.
macro_rules! unless_for_tests {
    ($($visit:ident: $node:ident,)*) => {
        $(fn $visit(&mut self, node: &'ast syn::$node) {
            if !is_test_only(&node.attrs) {
                visit::$visit(self, node);
            }
        })*
    };
}

impl<'ast> Visit<'ast> for Reader {
    unless_for_tests! {
        visit_arm: Arm,
        visit_expr_block: ExprBlock,
        visit_expr_call: ExprCall,
        visit_expr_for_loop: ExprForLoop,
        visit_field: Field,
        visit_field_value: FieldValue,
        visit_impl_item_const: ImplItemConst,
        visit_impl_item_fn: ImplItemFn,
        visit_item_const: ItemConst,
        visit_item_enum: ItemEnum,
        visit_item_extern_crate: ItemExternCrate,
        visit_item_fn: ItemFn,
        visit_item_static: ItemStatic,
        visit_item_struct: ItemStruct,
        visit_item_type: ItemType,
        visit_local: Local,
        visit_stmt_macro: StmtMacro,
        visit_variant: Variant,
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        let is_test = is_test_only(&module.attrs);
        let name = module.ident.to_string();
        match &module.content {
            Some(_) if is_test => {}
            Some((_, items)) => {
                self.in_module(name, |reader| items.iter().for_each(|item| reader.visit_item(item)));
            }
            None => {
                let is_elsewhere = module.attrs.iter().any(|attribute| attribute.path().is_ident("path"));
                assert!(is_test || !is_elsewhere, "{name}: a module is where its name says");
                if !is_elsewhere {
                    self.read.children.push(([&self.path[..], &[name]].concat(), is_test));
                }
            }
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test_only(&item.attrs) {
            self.note_tree(Vec::new(), &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.note(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, node: &'ast syn::Macro) {
        self.visit_path(&node.path);
        self.note_tokens(&[], node.tokens.clone());
    }

    // Neither `pub(crate)` nor an attribute uses anything.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_item_impl(&mut self, node: &'ast syn::ItemImpl) {
        if !is_test_only(&node.attrs) {
            self.uses.is_unsafe |= node.unsafety.is_some();
            visit::visit_item_impl(self, node);
        }
    }

    fn visit_item_trait(&mut self, node: &'ast syn::ItemTrait) {
        if !is_test_only(&node.attrs) {
            self.uses.is_unsafe |= node.unsafety.is_some();
            visit::visit_item_trait(self, node);
        }
    }

    fn visit_item_foreign_mod(&mut self, node: &'ast syn::ItemForeignMod) {
        if !is_test_only(&node.attrs) {
            self.uses.is_unsafe |= node.unsafety.is_some();
            visit::visit_item_foreign_mod(self, node);
        }
    }

    fn visit_signature(&mut self, node: &'ast syn::Signature) {
        self.uses.is_unsafe |= matches!(node.safety, syn::Safety::Unsafe(_));
        visit::visit_signature(self, node);
    }

    fn visit_expr_unsafe(&mut self, node: &'ast syn::ExprUnsafe) {
        self.uses.is_unsafe = true;
        visit::visit_expr_unsafe(self, node);
    }
}

/// Returns true if these attributes exclude code from all builds except those for tests.
pub fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let predicate: syn::Result<Meta> = attribute.parse_args();
        predicate.is_ok_and(|predicate| implies_test(&predicate))
    })
}

fn implies_test(predicate: &Meta) -> bool {
    match predicate {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => {
            let all = syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated;
            list.parse_args_with(all).is_ok_and(|all| all.iter().any(implies_test))
        }
        _ => false,
    }
}

fn is_colon(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':')
}
