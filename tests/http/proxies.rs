//! Names of tubes behind proxies that decode paths, with a prefix and without one. Each proxy runs if it is installed.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use beanring_testkit::driver;
use beanring_testkit::http_client::{HttpClient, JSON, OCTETS, Response, request};
use beanring_testkit::process::Address;
use beanring_testkit::scratch::Scratch;
use beanring_testkit::wait::until;

use super::live::Live;

/// Where the proxy serves the API, if not at its root.
const PREFIX: &str = "/queue";

/// Names that a path which is decoded or resolved takes apart.
const NAMES: [&str; 9] =
    ["victim", "x/../victim", "../../../../wiki/collect", "a/b", "a//b", "/", ".", "..", "a;b+c$(d)"];

struct Proxy {
    process: Child,
    at: SocketAddr,
    prefix: &'static str,
    _scratch: Scratch,
}

impl Proxy {
    /// Starts a program with this configuration, in which `DIR`, `PORT` and the like stand for their values. Returns `None` if it is not
    /// installed.
    fn start(
        name: &str,
        arguments: &[&str],
        config: &str,
        prefix: &'static str,
        server: SocketAddr,
    ) -> Option<Self> {
        let Some(program) = installed(name) else {
            println!("skipped: names behind {name}, because it is not installed");
            return None;
        };
        let (scratch, at) = (Scratch::new("proxy"), Address::fresh_tcp());
        let dir = scratch.dir("run");
        let fill = |text: &str| {
            let text = text.replace("DIR", &dir.display().to_string());
            let text = text.replace("LISTEN", &at.to_string()).replace("SERVER", &server.to_string());
            text.replace("PREFIX", prefix)
        };
        fs::write(dir.join("config"), fill(config)).expect("the file is written");
        let process = Command::new(program)
            .args(arguments.iter().map(|argument| fill(argument)))
            .stdin(Stdio::null())
            .stdout(fs::File::create(dir.join("log")).expect("the file is created"))
            .spawn()
            .expect("the program starts");
        until(&format!("{name} listens"), || TcpStream::connect(at).is_ok());
        println!("tested: names behind {name}");
        Some(Self { process, at, prefix, _scratch: scratch })
    }

    fn ask(&self, method: &str, path: &str, body: Option<(&str, &[u8])>) -> Response {
        let target = format!("{}/api/v1/{path}", self.prefix);
        HttpClient::tcp(self.at).ask(&request(method, &target, "Connection: close\r\n", body))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn installed(name: &str) -> Option<PathBuf> {
    let places = ["/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"];
    places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists())
}

/// A name as a segment of a path: encoded twice, as the console does.
fn segment(name: &str) -> String {
    let encode = |text: &str, keeps_dots: bool| -> String {
        let is_plain = |byte: u8| {
            byte.is_ascii_alphanumeric() || b"-_()".contains(&byte) || (keeps_dots && byte == b'.')
        };
        let one = |byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
        text.bytes().map(one).collect()
    };
    encode(&encode(name, name != "." && name != ".."), true)
}

/// Puts a job into each tube and empties them one by one: each request must reach the tube that it names, and no other.
fn check(proxy: &Proxy) {
    for name in NAMES {
        let put = proxy.ask("POST", &format!("tubes/{}/jobs", segment(name)), Some((OCTETS, b"x")));
        assert_eq!(put.status, 201, "{name}: {put:?}");
    }
    for name in NAMES {
        let path = format!("tubes/{}", segment(name));
        let tube = proxy.ask("GET", &path, None);
        assert_eq!(
            (tube.status, &tube.json()["name"], &tube.json()["ready"]),
            (200, &name.into(), &1.into()),
            "{tube:?}"
        );
        let flushed = proxy.ask("POST", &format!("{path}/flush"), Some((JSON, b"{}")));
        assert_eq!(flushed.json()["flushed"], 1, "{name}: {flushed:?}");
    }
}

fn behind(name: &str, arguments: &[&str], configs: [(&'static str, &str); 2]) {
    let io = driver::allowed(name).next().expect("a driver works");
    for (prefix, config) in configs {
        let at = Address::fresh_tcp();
        let live = Live::at(at, io, &["--http-allow-writes"]);
        let Some(proxy) = Proxy::start(name, arguments, config, prefix, at) else { return };
        check(&proxy);
        drop(live);
    }
}

#[test]
fn names_behind_nginx() {
    // With a path in proxy_pass it decodes that of the request, and resolves it.
    let config = |location: &str| {
        format!(
            "daemon off; master_process off; pid DIR/pid; error_log DIR/error; events {{}}\n\
             http {{ access_log off; client_body_temp_path DIR/body; proxy_temp_path DIR/proxy; fastcgi_temp_path DIR/f;\n\
             uwsgi_temp_path DIR/u; scgi_temp_path DIR/s; server {{ listen LISTEN; {location} }} }}\n"
        )
    };
    let whole = config("location / { proxy_pass http://SERVER; }");
    let part = config("location PREFIX/ { proxy_pass http://SERVER/; }");
    behind("nginx", &["-p", "DIR", "-e", "DIR/error", "-c", "DIR/config"], [("", &whole), (PREFIX, &part)]);
}

#[test]
fn names_behind_apache() {
    let config = "ServerRoot DIR\nServerName proxy\nListen LISTEN\nPidFile DIR/pid\nErrorLog DIR/error\n\
                  LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so\n\
                  LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\n\
                  LoadModule proxy_module /usr/lib/apache2/modules/mod_proxy.so\n\
                  LoadModule proxy_http_module /usr/lib/apache2/modules/mod_proxy_http.so\n\
                  ProxyPass PREFIX/ http://SERVER/\n";
    behind("apache2", &["-X", "-f", "DIR/config"], [("", config), (PREFIX, config)]);
}

#[test]
fn names_behind_haproxy() {
    let config = |rule: &str| {
        format!(
            "defaults\n mode http\n timeout connect 9s\n timeout client 9s\n timeout server 9s\n\
             listen proxy\n bind LISTEN\n {rule}\n server one SERVER\n"
        )
    };
    let part = config("http-request replace-path PREFIX/(.*) /\\1");
    // It puts the path into its normal form first.
    let normal = "http-request normalize-uri path-strip-dotdot full\n http-request normalize-uri percent-decode-unreserved\n";
    let whole = format!("global\n expose-experimental-directives\n{}", config(normal));
    behind("haproxy", &["-db", "-f", "DIR/config"], [("", &whole), (PREFIX, &part)]);
}
