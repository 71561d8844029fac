//! A server that replies with tube names and bodies that no server should have.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Sets the title of a terminal, clears it, and contains every byte but the one that ends a line of a list.
pub fn evil() -> Vec<u8> {
    let all = (0..=255).filter(|&byte| byte != b'\n');
    [b"\x1b]0;pwned\x07\x1b[2J\x9b2J\xc2\x9b2J\xe2\x80\xae".to_vec(), all.collect()].concat()
}

/// Starts the server. It ends with the test.
pub fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(|| serve(client));
        }
    });
    address
}

fn serve(mut client: TcpStream) {
    let lines = BufReader::new(client.try_clone().expect("there are descriptors")).split(b'\n');
    for line in lines.map_while(Result::ok) {
        let words: Vec<&[u8]> = line.trim_ascii_end().split(|&byte| byte == b' ').collect();
        let evil = evil();
        let reply = match words[0] {
            b"stats" => {
                ok(b"", &[b"---\nversion: ", &evil, b"\nid: ", &evil, b"\nio-driver: ", &evil, b"\n"])
            }
            b"list-tubes" => ok(b"", &[b"---\n- ", &evil, b"\n- zgood\n"]),
            b"stats-tube" => {
                ok(b"", &[b"---\nname: ", &evil, b"\n", &evil, b": ", &evil, b"\ncurrent-jobs-ready: 7\n"])
            }
            b"stats-job" => ok(b"", &[b"---\nid: 1\nstate: ", &evil, b"\n"]),
            b"use" => [b"USING ", words[1], b"\r\n"].concat(),
            b"kick" => [b"NO_".to_vec(), evil, b"\r\n".to_vec()].concat(),
            // Bodies may have every byte.
            _ => ok(b"1 ", &[&evil, b"\n", &evil]),
        };
        if client.write_all(&reply).is_err() {
            return;
        }
    }
}

fn ok(id: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let data = parts.concat();
    let word = if id.is_empty() { "OK " } else { "FOUND " };
    [word.as_bytes(), id, data.len().to_string().as_bytes(), b"\r\n", &data, b"\r\n"].concat()
}
