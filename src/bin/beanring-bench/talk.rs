//! Requests one at a time, before and after a load. They are neither measured nor fast.

use std::mem;
use std::rc::Rc;
use std::time::Duration;

use crate::failure::Failure;
use crate::meter::{Command, Sent};
use crate::net::Stream;
use crate::scan::{Reply, Scan, is_refusal, scan};

/// Commands that are sent before their replies are read: few enough for any socket's buffers.
const BATCH: usize = 64;

const READ_BYTES: usize = 16 * 1024;

/// A connection that sends a request and waits for the reply.
pub struct ProtocolState<S> {
    stream: Rc<S>,
    sent: Rc<Sent>,
    patience: Duration,
    inbox: Vec<u8>,
}

impl<S: Stream> ProtocolState<S> {
    /// Wraps `stream`. Waits for each reply up to `patience`.
    pub fn new(stream: Rc<S>, sent: Rc<Sent>, patience: Duration) -> ProtocolState<S> {
        ProtocolState { stream, sent, patience, inbox: Vec::with_capacity(READ_BYTES) }
    }

    /// Sends a command for each line, and passes each reply to `judge`, which returns whether it is valid.
    pub async fn ask_all(
        &mut self,
        command: Command,
        lines: impl IntoIterator<Item = Vec<u8>>,
        mut judge: impl FnMut(Reply<'_>) -> bool,
    ) -> Result<(), Failure> {
        let mut lines = lines.into_iter().peekable();
        while lines.peek().is_some() {
            let batch: Vec<Vec<u8>> = lines.by_ref().take(BATCH).collect();
            batch.iter().for_each(|_| self.sent.count(command));
            self.send(batch.concat()).await?;
            for _ in 0..batch.len() {
                self.answer(command, &mut judge).await?;
            }
        }
        Ok(())
    }

    /// Sends one command.
    pub async fn ask(
        &mut self,
        command: Command,
        line: impl AsRef<[u8]>,
        judge: impl FnMut(Reply<'_>) -> bool,
    ) -> Result<(), Failure> {
        self.ask_all(command, [line.as_ref().to_vec()], judge).await
    }

    /// Sends bytes of another protocol and returns one line of the reply.
    pub async fn ask_line(&mut self, command: Command, bytes: Vec<u8>, begins: &[u8]) -> Result<(), Failure> {
        self.sent.count(command);
        self.send(bytes).await?;
        while !self.inbox.contains(&b'\n') {
            self.read_more().await?;
        }
        if !self.inbox.starts_with(begins) {
            return Err(Failure::nonsense(command, &self.inbox));
        }
        self.inbox.clear();
        Ok(())
    }

    /// Writes bytes.
    pub async fn send(&self, bytes: Vec<u8>) -> Result<(), Failure> {
        let (result, _) = self.patiently(self.stream.write_all(bytes)).await?;
        result.map_err(Failure::Broken)
    }

    async fn answer(
        &mut self,
        command: Command,
        judge: &mut impl FnMut(Reply<'_>) -> bool,
    ) -> Result<(), Failure> {
        loop {
            match scan(&self.inbox) {
                Scan::Whole { reply, used } => {
                    if judge(reply) {
                        self.inbox.drain(..used);
                        return Ok(());
                    }
                    return Err(match reply {
                        Reply::Word(word) if is_refusal(word) => Failure::Refused { to: command, word },
                        _ => Failure::nonsense(command, &self.inbox),
                    });
                }
                Scan::Partial { .. } => self.read_more().await?,
                Scan::Nonsense => return Err(Failure::nonsense(command, &self.inbox)),
            }
        }
    }

    async fn read_more(&mut self) -> Result<(), Failure> {
        self.inbox.reserve(READ_BYTES);
        let inbox = mem::take(&mut self.inbox);
        let (result, inbox) = self.patiently(self.stream.read(inbox)).await?;
        self.inbox = inbox;
        match result {
            Ok(0) => Err(Failure::Closed),
            Ok(_) => Ok(()),
            Err(error) => Err(Failure::Broken(error)),
        }
    }

    async fn patiently<T>(&self, work: impl Future<Output = T>) -> Result<T, Failure> {
        tokio::time::timeout(self.patience, work).await.map_err(|_| Failure::Silent(self.patience))
    }
}
