//! A run that can be replayed: its setting and its actions. A run that fails is shortened to a minimal one that fails in the
//! same way.

use std::fmt::Write;

use beanring::wal::Durability;

use super::super::seeds::caught;
use super::action::Action;
use super::world::{INTERVAL, Setting, World};

pub struct Script {
    pub setting: Setting,
    pub actions: Vec<Action>,
}

impl Script {
    pub fn text(&self) -> String {
        let mode = match self.setting.durability {
            None => "none",
            Some(Durability::Always) if self.setting.network => "network",
            Some(Durability::Always) => "always",
            Some(Durability::Within(_)) => "within",
            Some(Durability::Never) => "never",
        };
        let memory = self.setting.memory.map_or("any".to_owned(), |bytes| bytes.to_string());
        let Setting { space, sub_second, tls, keep_reservations, .. } = self.setting;
        let flags = [("decimals", sub_second), ("tls", tls), ("reservations", keep_reservations)];
        let flags = flags.into_iter().filter(|&(_, is_set)| is_set).map(|(word, _)| format!(", {word}"));
        let mut text =
            format!("log {mode}, segments {space}, memory {memory}{}\n", flags.collect::<String>());
        for action in &self.actions {
            writeln!(text, "{action}").expect("writing to a String cannot fail");
        }
        text
    }

    pub fn parse(text: &str) -> Self {
        let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let words: Vec<&str> =
            lines.next().expect("a setting").split([' ', ',']).filter(|word| !word.is_empty()).collect();
        let ["log", mode, "segments", room, "memory", memory, ref rest @ ..] = words[..] else {
            panic!("{words:?} is not a setting")
        };
        let is_known = |word| ["decimals", "tls", "reservations"].contains(word);
        assert!(rest.iter().all(is_known), "{words:?} is not a setting");
        let durability = match mode {
            "none" => None,
            "always" | "network" => Some(Durability::Always),
            "within" => Some(Durability::Within(INTERVAL)),
            "never" => Some(Durability::Never),
            other => panic!("{other} is not a mode"),
        };
        let setting = Setting {
            durability,
            network: mode == "network",
            space: room.parse().expect("a number of segments"),
            memory: (memory != "any").then(|| memory.parse().expect("a number of bytes")),
            sub_second: rest.contains(&"decimals"),
            tls: rest.contains(&"tls"),
            keep_reservations: rest.contains(&"reservations"),
            ..Setting::WITHOUT_LOG
        };
        Self { setting, actions: lines.map(Action::parse).collect() }
    }

    /// # Panics
    /// If the server violates the model or an invariant.
    pub fn play(&self) {
        let mut world = World::new(self.setting);
        for action in &self.actions {
            world.apply(action);
        }
        world.apply(&Action::Settle);
    }

    /// Returns the kind of its failure, without numbers.
    pub fn failure(&self) -> Option<String> {
        caught(|| self.play()).err().as_deref().map(kind_of)
    }

    /// Removes the actions that the failure does not need.
    pub fn shrink(mut self, tries: usize) -> Self {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        self.shorten(tries);
        std::panic::set_hook(hook);
        self
    }

    fn shorten(&mut self, tries: usize) {
        let Some(failure) = self.failure() else { return };
        let setting = self.setting;
        let fails = |actions: &[Action]| {
            Self { setting, actions: actions.to_vec() }.failure().as_ref() == Some(&failure)
        };
        let mut tries = tries;
        remove(&mut self.actions, &mut tries, fails);
        for at in 0..self.actions.len() {
            let Action::Send { client, ref bytes } = self.actions[at] else { continue };
            let mut lines: Vec<Vec<u8>> =
                bytes.split_inclusive(|&byte| byte == b'\n').map(Vec::from).collect();
            let send = |lines: &[Vec<u8>]| Action::Send { client, bytes: lines.concat() };
            let mut actions = self.actions.clone();
            remove(&mut lines, &mut tries, |lines| {
                actions[at] = send(lines);
                fails(&actions)
            });
            self.actions[at] = send(&lines);
        }
    }
}

/// Removes the items without which it fails too.
fn remove<T: Clone>(items: &mut Vec<T>, tries: &mut usize, mut fails: impl FnMut(&[T]) -> bool) {
    let mut chunk = items.len().next_power_of_two() / 2;
    while chunk > 0 && *tries > 0 {
        let mut at = 0;
        let mut has_changed = false;
        while at < items.len() && *tries > 0 {
            *tries -= 1;
            let mut fewer = items.clone();
            fewer.drain(at..(at + chunk).min(items.len()));
            if fails(&fewer) {
                *items = fewer;
                has_changed = true;
            } else {
                at += chunk;
            }
        }
        if chunk > 1 || !has_changed {
            chunk /= 2;
        }
    }
}

/// Returns the first line of a message without digits.
fn kind_of(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    line.chars().filter(|letter| !letter.is_ascii_digit()).take(60).collect()
}
