//! Network namespaces: two with a cable between them, or several with a router.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{panic, thread};

use nix::sched::{CloneFlags, setns};
use nix::unistd::geteuid;

/// No other process has an address in these namespaces.
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 11300);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const CLIENT_MAC: &str = "02:00:00:00:00:02";

/// Namespaces without a connection to any other. They are deleted with the value.
struct Namespaces(Vec<String>);

/// A network of two machines, as far as the kernel can tell.
pub struct Network(Namespaces);

/// A cable that does not copy. It does again once this value is dropped.
pub struct Uncopied(Child);

/// Machines with a router between them, which can drop what one sends to another.
pub struct Machines(Namespaces);

impl Namespaces {
    /// Makes them, or says why that cannot be.
    fn make(count: usize) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !geteuid().is_root() {
            return Err("only root can make network namespaces".to_owned());
        }
        let own = format!("beanring-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // This deletes those that were made before an error too.
        let namespaces = Self((0..count).map(|number| format!("{own}-{number}")).collect());
        for name in &namespaces.0 {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(namespaces)
    }
}

impl Drop for Uncopied {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            // Fails only for one that was not made.
            let _ = ip(&format!("netns delete {name}"));
        }
    }
}

impl Network {
    /// Lays it, or says why that cannot be.
    pub fn lay() -> Result<Self, String> {
        let network = Self(Namespaces::make(2)?);
        let [server, client] = [0, 1].map(|at| &*network.0.0[at]);
        let peer = format!("cable netns {client} address {CLIENT_MAC}");
        ip(&format!("-n {server} link add cable type veth peer {peer}"))?;
        set_up(server, "cable", &format!("{}/30", SERVER.ip()))?;
        set_up(client, "cable", &format!("{CLIENT}/30"))?;
        Ok(network)
    }

    /// Where a server listens.
    pub const fn address(&self) -> SocketAddrV4 {
        SERVER
    }

    /// A command for the server's side.
    pub fn on_server(&self, words: &[&str]) -> Command {
        command(&[&["ip", "netns", "exec", &self.0.0[0]], words].concat())
    }

    /// Has the cable not copy what the server sends without a copy, as long as the returned value lives; or says why that cannot be.
    pub fn pass_uncopied(&self) -> Result<Uncopied, String> {
        let script = ["python3", "-c", include_str!("xdp_pass.py"), "cable"];
        let mut command = command(&[&["ip", "netns", "exec", &self.0.0[1]][..], &script].concat());
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("python3 cannot be run: {error}"))?;
        let mut said = String::new();
        let stdout = process.stdout.as_mut().expect("it is a pipe");
        let read = BufReader::new(stdout).read_line(&mut said);
        if read.is_ok() && said == "attached\n" {
            return Ok(Uncopied(process));
        }
        let output = process.wait_with_output().map_err(|error| error.to_string())?;
        let last = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
        Err(format!("an XDP program cannot be attached: {last}"))
    }

    /// Cuts the cable, or connects it again. The server's side does not search for the client's, as if that were behind a router: what it
    /// sends is lost at once.
    pub fn cut(&self, is_cut: bool) {
        let state = if is_cut { "down" } else { "up" };
        let neighbor = format!("neighbor replace {CLIENT} lladdr {CLIENT_MAC} dev cable nud permanent");
        ip(&format!("-n {} {neighbor}", self.0.0[0])).unwrap_or_else(|error| panic!("{error}"));
        ip(&format!("-n {} link set cable {state}", self.0.0[1])).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Does `what` on the server's side.
    pub fn beside_server<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        inside(&self.0.0[0], what)
    }

    /// Does `what` on the client's side.
    pub fn on_client(&self, what: impl FnOnce() + Send) {
        inside(&self.0.0[1], what);
    }
}

impl Machines {
    /// Lays the network, or says why that cannot be.
    pub fn lay(count: usize) -> Result<Self, String> {
        let machines = Self(Namespaces::make(count + 1)?);
        let router = machines.router();
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        try_run(&mut command(&["ip", "netns", "exec", router, "sh", "-c", forward]))?;
        for machine in 0..count {
            let (name, port) = (machines.name(machine), format!("port{machine}"));
            let gateway = Ipv4Addr::new(10, 78, machine as u8, 1);
            ip(&format!("-n {router} link add {port} type veth peer name cable netns {name}"))?;
            set_up(router, &port, &format!("{gateway}/24"))?;
            set_up(&name, "cable", &format!("{}/24", machines.address(machine)))?;
            ip(&format!("-n {name} route add default via {gateway}"))?;
        }
        Ok(machines)
    }

    /// The namespace of a machine.
    pub fn name(&self, machine: usize) -> String {
        self.0.0[machine].clone()
    }

    fn router(&self) -> &str {
        self.0.0.last().expect("it was made")
    }

    /// Does `what` on a machine.
    pub fn on<T: Send>(&self, machine: usize, what: impl FnOnce() -> T + Send) -> T {
        inside(&self.0.0[machine], what)
    }

    /// The address of a machine.
    pub fn address(&self, machine: usize) -> Ipv4Addr {
        assert!(machine + 1 < self.0.0.len(), "there is no such machine");
        Ipv4Addr::new(10, 78, machine as u8, 2)
    }

    /// Drops what the machines of each pair send to each other from now on, or passes it on again.
    pub fn cut(&self, pairs: &[(usize, usize)], is_cut: bool) {
        let action = if is_cut { "add" } else { "delete" };
        let both = pairs.iter().flat_map(|&(one, other)| [(one, other), (other, one)]);
        let rule = |(from, to)| {
            format!("rule {action} from {} to {} blackhole\n", self.address(from), self.address(to))
        };
        let rules: String = both.map(rule).collect();
        // One process, so that all happens at once.
        let batch = r#"printf %s "$2" | ip -n "$1" -batch -"#;
        try_run(&mut command(&["sh", "-c", batch, "sh", self.router(), &rules]))
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Moves this thread to a namespace.
pub fn enter(namespace: &str) {
    let namespace = File::open(format!("/var/run/netns/{namespace}")).expect("the namespace exists");
    setns(namespace, CloneFlags::CLONE_NEWNET).expect("root may enter it");
}

/// Does `what` on a thread in a namespace.
pub fn inside<T: Send>(namespace: &str, what: impl FnOnce() -> T + Send) -> T {
    let enter = || {
        enter(namespace);
        what()
    };
    let result = thread::scope(|scope| scope.spawn(enter).join());
    result.unwrap_or_else(|payload| panic::resume_unwind(payload))
}

fn set_up(namespace: &str, device: &str, address: &str) -> Result<(), String> {
    ip(&format!("-n {namespace} address add {address} dev {device}"))?;
    ip(&format!("-n {namespace} link set {device} up"))
}

fn ip(line: &str) -> Result<(), String> {
    try_run(Command::new("ip").args(line.split(' ')))
}

pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// Runs a command to its end. Returns why it failed, if it did.
pub fn try_run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().display().to_string();
    let output = command.output().map_err(|error| format!("{program} cannot be run: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{program} fails: {}", stderr.trim())) }
}
