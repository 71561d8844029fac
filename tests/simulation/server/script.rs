//! A run that can be replayed: its setting and its actions. A run that fails is shortened to a minimal one that fails in the
//! same way.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use beanring::wal::Durability;

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
        let decimals = if self.setting.sub_second { ", decimals" } else { "" };
        let tls = if self.setting.tls { ", tls" } else { "" };
        let reservations = if self.setting.keep_reservations { ", reservations" } else { "" };
        let mut text = format!(
            "log {mode}, segments {}, memory {memory}{decimals}{tls}{reservations}\n",
            self.setting.space
        );
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
        let keep_reservations = rest.contains(&"reservations");
        let (sub_second, tls) = (rest.contains(&"decimals"), rest.contains(&"tls"));
        let memory = (memory != "any").then(|| memory.parse().expect("a number of bytes"));
        let durability = match mode {
            "none" => None,
            "always" | "network" => Some(Durability::Always),
            "within" => Some(Durability::Within(INTERVAL)),
            "never" => Some(Durability::Never),
            other => panic!("{other} is not a mode"),
        };
        let space = room.parse().expect("a number of segments");
        let setting = Setting {
            durability,
            network: mode == "network",
            space,
            memory,
            sub_second,
            tls,
            keep_reservations,
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
        let panic = catch_unwind(AssertUnwindSafe(|| self.play())).err()?;
        Some(kind_of(&message(&*panic)))
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
        let mut tries = tries;
        let mut chunk = self.actions.len().next_power_of_two() / 2;
        while chunk > 0 && tries > 0 {
            let mut at = 0;
            let mut has_changed = false;
            while at < self.actions.len() && tries > 0 {
                tries -= 1;
                let mut actions = self.actions.clone();
                actions.drain(at..(at + chunk).min(actions.len()));
                let shorter = Self { setting: self.setting, actions };
                if shorter.failure().as_ref() == Some(&failure) {
                    *self = shorter;
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
}

/// Returns the message of a panic.
pub fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

/// Returns the first line of a message without digits.
fn kind_of(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    line.chars().filter(|letter| !letter.is_ascii_digit()).take(60).collect()
}
