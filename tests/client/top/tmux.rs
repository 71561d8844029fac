//! A program on a terminal: tmux is the terminal, shows what is on it, and presses keys.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use std::{fs, thread};

use beanring_testkit::process::{REPLY_PATIENCE, program};
use beanring_testkit::scratch::Scratch;

/// A terminal with a shell that runs one command.
pub struct Terminal {
    scratch: Scratch,
}

/// Looks for tmux. Without it the test is reported as skipped.
pub fn found(what: &str) -> Option<()> {
    let is_there = Command::new("tmux").arg("-V").output().is_ok_and(|output| output.status.success());
    if !is_there {
        println!("skipped: {what} on a terminal, because tmux is not installed");
    }
    is_there.then_some(())
}

impl Terminal {
    /// Runs `beanring top` with these arguments. When it ends, the shell prints its exit code and the mode of the terminal.
    pub fn top(width: u16, height: u16, arguments: &str) -> Self {
        Self::run(width, height, "", arguments)
    }

    /// The same with variables: `NAME=VALUE`.
    pub fn run(width: u16, height: u16, variables: &str, arguments: &str) -> Self {
        let command = format!(
            "env -u NO_COLOR -u BEANRING_ADDR {variables} '{}' top {arguments}; echo \"exit code $?\"; stty -a; exec sleep 600",
            program()
        );
        Self::shell(width, height, &["sh", "-c", &command])
    }

    /// Runs a shell.
    pub fn shell(width: u16, height: u16, command: &[&str]) -> Self {
        let terminal = Self { scratch: Scratch::new("top") };
        let size = [width.to_string(), height.to_string()];
        let session = ["-f", "/dev/null", "new-session", "-d", "-x", &size[0], "-y", &size[1]];
        terminal.tmux(&[&session, command].concat());
        terminal
    }

    fn socket(&self) -> PathBuf {
        self.scratch.join("tmux")
    }

    fn try_tmux(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        // Outside of any other tmux, and in UTF-8 whatever the locale is.
        command.env_remove("TMUX").env("TERM", "xterm-256color").arg("-u").arg("-S").arg(self.socket());
        command.args(arguments).output().expect("there is a tmux")
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = self.try_tmux(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tmux {arguments:?}: {error}");
        String::from_utf8(output.stdout).expect("it is UTF-8")
    }

    /// Presses keys, as tmux names them.
    pub fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types a text.
    pub fn text(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
    }

    /// Pastes a text.
    pub fn paste(&self, text: &str) {
        self.tmux(&["set-buffer", text]);
        self.tmux(&["paste-buffer", "-p", "-r"]);
    }

    pub fn resize(&self, width: u16, height: u16) {
        self.tmux(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
    }

    /// The lines that the terminal shows.
    pub fn screen(&self) -> Vec<String> {
        self.tmux(&["capture-pane", "-p"]).lines().map(str::to_owned).collect()
    }

    /// The same with the escape sequences for colors.
    pub fn colored_screen(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-e"])
    }

    /// Waits until the screen is as it should be, and returns it.
    pub fn wait(&self, what: &str, is_right: impl Fn(&[String]) -> bool) -> Vec<String> {
        let started = Instant::now();
        loop {
            let screen = self.screen();
            if is_right(&screen) {
                return screen;
            }
            assert!(started.elapsed() < REPLY_PATIENCE, "no {what}:\n{}", screen.join("\n"));
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a line contains this text.
    pub fn wait_for(&self, text: &str) -> Vec<String> {
        self.wait(text, |screen| screen.iter().any(|line| line.contains(text)))
    }

    /// Waits for the end of the program, and checks that the terminal is as before: the first screen, a cursor, echo, lines.
    pub fn wait_for_end(&self, exit_code: i32) {
        let screen = self.wait_for("isig").join("\n");
        assert!(screen.contains(&format!("exit code {exit_code}\n")), "{screen}");
        assert!(!screen.contains("TUBE"), "{screen}");
        for mode in [" icanon", " echo "] {
            assert!(screen.contains(mode), "{mode}: {screen}");
        }
        assert_eq!(self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]), "0 1\n");
    }

    /// The title that a program can set with an escape sequence.
    pub fn title(&self) -> String {
        self.tmux(&["display-message", "-p", "#{pane_title}"])
    }

    /// Writes everything that the program sends to the terminal from now on to a file.
    pub fn record(&self) -> PathBuf {
        let file = self.scratch.join("recording");
        fs::write(&file, "").expect("there is space");
        self.tmux(&["pipe-pane", &format!("exec cat >> '{}'", file.display())]);
        file
    }

    /// The process of the program.
    pub fn pid(&self) -> i32 {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let children = format!("/proc/{0}/task/{0}/children", shell.trim());
        let children = fs::read_to_string(children).expect("the shell runs");
        children.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("the program runs")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!(
                "the terminal:\n{}",
                String::from_utf8_lossy(&self.try_tmux(&["capture-pane", "-p"]).stdout)
            );
        }
        self.try_tmux(&["kill-server"]);
    }
}
