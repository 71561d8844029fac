//! Clients: what they send, and which replies leave the servers.

use beanring::server::{Entry, Event, Protocol, Service};
use beanring::time::{Span, Time};
use beanring_testkit::connection::{Connection, ConnectionState};
use beanring_testkit::reply;

use super::super::checker::{Command, Kind, Replied};
use super::super::holds::Peer;
use super::{Client, Happening, Host, MS, World};

/// Connections of a server.
const CONNECTIONS_MAX: usize = 4;
/// Commands without a reply on a connection.
const COMMANDS_MAX: usize = 8;
/// The time to run of every job, in seconds.
const TTR: u32 = 2;
/// Long enough that no delay ends during a run.
const LONG_DELAY: u64 = 100_000;

impl World {
    /// A client does something.
    pub(super) fn commands(&mut self) {
        let mut serving = self.leaders();
        serving.retain(|&host| self.hosts[host].paused_at.is_none());
        if serving.is_empty() {
            return;
        }
        let host = self.random.pick(&serving);
        let open: Vec<usize> = (0..self.hosts[host].connections.len())
            .filter(|&index| {
                let (connection, client) = &self.hosts[host].connections[index];
                connection.is_open() && !client.is_gone
            })
            .collect();
        if open.len() < CONNECTIONS_MAX && (open.is_empty() || self.random.one_in(10)) {
            return self.connect(host);
        }
        let index = self.random.pick(&open);
        if self.random.one_in(100) {
            return self.leave(host, index);
        }
        for _ in 0..1 + self.random.below(4) {
            if self.hosts[host].connections[index].1.commands.len() < COMMANDS_MAX {
                self.command(host, index);
            }
        }
        let process = self.process(host);
        self.within(3 * MS, Happening::Deliver(process, index));
    }

    fn connect(&mut self, host: usize) {
        let now = self.clock(host, self.now);
        let server = self.hosts[host].server.as_mut().expect("it runs");
        let conn = server.accept(now, Protocol::Beanstalk, Entry::Plain(None));
        self.clients += 1;
        let client = Client { number: self.clients, ..Client::default() };
        self.hosts[host].connections.push((Connection::new(conn), client));
        let process = self.process(host);
        self.after(0, Happening::Wake(process));
    }

    fn leave(&mut self, host: usize, index: usize) {
        let (_, client) = &mut self.hosts[host].connections[index];
        client.is_gone = true;
        let commands = std::mem::take(&mut client.commands);
        self.checker.left(client.number);
        commands.iter().for_each(|command| self.checker.lost(command));
        let process = self.process(host);
        self.after(0, Happening::Deliver(process, index));
    }

    fn command(&mut self, host: usize, index: usize) {
        let holds = &self.hosts[host].connections[index].1.holds;
        let id = match self.random.below(4) {
            0 => 1 + self.random.below_u64(self.checker.last_id()),
            _ if !holds.is_empty() => self.random.pick(holds),
            _ => 1 + self.random.below_u64(20),
        };
        let id = match self.is_current(host) && self.random.one_in(4) {
            true => self.checker.lost_reservation(self.process(host), id).unwrap_or(id),
            false => id,
        };
        // Replies to changes would hold up those to what is asked after them.
        let is_cut_off = self.hosts[host].node.is_none() || !self.is_current(host);
        let is_read = self.setting.reads && (is_cut_off || self.random.chance(60));
        let id = if is_read && self.random.chance(80) { self.checker.recent.max(1) } else { id };
        let (kind, text) = match if is_read { 19 } else { self.random.below(20) } {
            0..7 => {
                self.puts += 1;
                let number = self.puts;
                let padding = match self.random.below(8) {
                    0 => self.random.below(self.setting.body_bytes_max),
                    _ => self.random.below(40),
                };
                let delay = if self.random.one_in(10) { 1 } else { 0 };
                let body = format!("n{number:08}{}", "x".repeat(padding));
                (Kind::Put { number }, format!("put 0 {delay} {TTR} {}\r\n{body}\r\n", body.len()))
            }
            7..12 => {
                let timeout = if self.random.one_in(6) { 1 } else { 0 };
                (Kind::Reserve { ttr: Span::from_secs(TTR) }, format!("reserve-with-timeout {timeout}\r\n"))
            }
            12..15 => (Kind::Delete { id }, format!("delete {id}\r\n")),
            15 => {
                let is_delayed = self.random.chance(30);
                let delay = if is_delayed { LONG_DELAY } else { 0 };
                (Kind::Release { id, is_delayed }, format!("release {id} 0 {delay}\r\n"))
            }
            16 => (Kind::Bury { id }, format!("bury {id} 0\r\n")),
            17 => (Kind::Touch { id }, format!("touch {id}\r\n")),
            18 if self.random.chance(50) => (Kind::KickJob { id }, format!("kick-job {id}\r\n")),
            18 if self.random.chance(30) => (Kind::Kick, "kick 3\r\n".to_owned()),
            18 if self.random.chance(30) => (Kind::Pause, "pause-tube default 0\r\n".to_owned()),
            _ => (Kind::Peek { id }, format!("peek {id}\r\n")),
        };
        let mut command = Command::new(kind, self.now, self.clock(host, self.now));
        let (process, is_current) = (self.process(host), self.is_current(host));
        let client = self.hosts[host].connections[index].1.number;
        self.checker.sent(Peer { client, process }, &mut command, is_current);
        let (connection, client) = &mut self.hosts[host].connections[index];
        if !matches!(kind, Kind::Touch { .. } | Kind::Peek { .. }) {
            client.holds.retain(|&held| held != id || !is_about(kind, id));
        }
        client.commands.push_back(command);
        connection.unreceived.extend_from_slice(text.as_bytes());
    }

    /// The server receives what was sent to it, or learns that the client is gone.
    pub(super) fn deliver(&mut self, host: usize, index: usize, now: Time) {
        let Host { connections, server, .. } = &mut self.hosts[host];
        let Some((connection, client)) = connections.get_mut(index) else { return };
        if !connection.is_open() {
            return;
        }
        let server = server.as_mut().expect("it runs");
        if client.is_gone {
            let conn = connection.conn;
            return server.handle(now, Event::HungUp { conn });
        }
        if !connection.is_paused && !connection.unreceived.is_empty() {
            let bytes = if self.random.chance(80) { usize::MAX } else { 1 + self.random.below(200) };
            connection.receive(bytes, self.random.chance(50), server, now);
            if !connection.unreceived.is_empty() {
                let process = self.process(host);
                self.after(MS, Happening::Deliver(process, index));
            }
        }
    }

    /// Sends what may leave.
    pub(super) fn transmit(&mut self, host: usize, index: usize) {
        let (now, read_at) = self.hosts[host].iteration;
        for _ in 0..100 {
            let Host { connections, server, .. } = &mut self.hosts[host];
            let Some((connection, _)) = connections.get_mut(index) else { return };
            if !connection.wants_send || connection.state != ConnectionState::Open {
                return;
            }
            let server = server.as_mut().expect("it runs");
            let shown = connection.begin_send(server);
            if !connection.is_sending() {
                return;
            }
            if !shown.is_empty() {
                assert!(
                    read_at < self.hosts[host].bound,
                    "a reply leaves server {host} {} us after its lease: {:?}",
                    (read_at - self.hosts[host].bound) / 1000,
                    String::from_utf8_lossy(&shown[..shown.len().min(80)])
                );
                self.receive(host, index, &shown);
            }
            let bytes = if self.random.chance(80) { usize::MAX } else { 1 + self.random.below(30) };
            let Host { connections, server, .. } = &mut self.hosts[host];
            let (connection, _) = &mut connections[index];
            let server = server.as_mut().expect("it runs");
            let sent = connection.end_send(bytes, server);
            let conn = connection.conn;
            server.handle(now, Event::Sent { conn, bytes: sent.len() });
            if self.random.one_in(10) {
                let process = self.process(host);
                return self.within(100 * MS, Happening::Transmit(process, index));
            }
        }
        let process = self.process(host);
        self.after(MS, Happening::Transmit(process, index));
    }

    fn receive(&mut self, host: usize, index: usize, bytes: &[u8]) {
        let (_, client) = &mut self.hosts[host].connections[index];
        client.received.extend_from_slice(bytes);
        if client.is_gone {
            return;
        }
        let (process, is_current) = (self.process(host), self.is_current(host));
        loop {
            let (_, client) = &mut self.hosts[host].connections[index];
            let Some(reply) = reply::first(&client.received) else { return };
            let (line, body) = (reply.line.to_owned(), reply.data.unwrap_or_default().to_vec());
            let length = reply.bytes;
            client.received.drain(..length);
            let command = client.commands.pop_front().expect("a reply follows a command");
            let mut about = command.kind.touched_job();
            if line.starts_with("RESERVED") {
                let id: u64 = line.split(' ').nth(1).and_then(|id| id.parse().ok()).expect("an id");
                client.holds.push(id);
                about = Some(id);
            }
            let may_end = about
                .is_some_and(|id| client.commands.iter().any(|command| command.kind.ended_job() == Some(id)));
            let number = client.number;
            self.log(|| format!("server {host} to client {number}: {line} to {:?}", command.kind));
            self.checker.replied(&Replied {
                to: Peer { client: number, process },
                command: &command,
                line: &line,
                body: &body,
                is_current,
                may_end,
                now: self.now,
                clock: self.hosts[host].iteration.0,
            });
        }
    }
}

fn is_about(kind: Kind, id: u64) -> bool {
    matches!(kind, Kind::Delete { id: about } | Kind::Release { id: about, .. } | Kind::Bury { id: about } if about == id)
}
