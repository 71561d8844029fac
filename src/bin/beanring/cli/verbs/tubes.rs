//! Verbs that act on a tube or the whole server.

use beanring::time::Seconds;
use beanring::values::job_state::JobState;
use beanring::values::tube_rules::RuleKey;
use clap::Args;

use super::Common;
use super::values::{count, rule_key, state_among, time, tube_name};

/// `beanring pause`
#[derive(Args, Clone, Debug)]
pub struct Pause {
    /// Tube to pause
    #[arg(value_name = "TUBE", value_parser = tube_name)]
    pub tube: String,
    /// How long, such as 30, 10m or 1d; 0 ends a pause; decimals such as 0.25 need --sub-second on the
    /// server
    #[arg(value_name = "TIME", allow_negative_numbers = true, value_parser = time)]
    pub time: Seconds,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring tube-config`
#[derive(Args, Clone, Debug)]
pub struct TubeConfig {
    /// Tube that has the rules; it need not exist
    #[arg(value_name = "TUBE", value_parser = tube_name)]
    pub tube: String,
    /// Rule to set [default: show the rules]
    #[arg(value_name = "KEY", requires = "value", value_parser = rule_key)]
    pub key: Option<RuleKey>,
    /// A number, a size, a time, or the name of the dead-letter tube; 0 removes the rule
    #[arg(value_name = "VALUE", allow_negative_numbers = true)]
    pub value: Option<String>,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring flush`
#[derive(Args, Clone, Debug)]
pub struct Flush {
    /// Tube whose jobs are deleted
    #[arg(value_name = "TUBE", value_parser = tube_name)]
    pub tube: String,
    /// Delete without asking; required without a terminal
    #[arg(short, long)]
    pub yes: bool,
    /// Delete no jobs; forget the idempotency keys of deleted ones, without asking
    #[arg(long, conflicts_with = "yes")]
    pub keys: bool,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring move`
#[derive(Args, Clone, Debug)]
pub struct Move {
    /// Tube to move jobs from
    #[arg(value_name = "FROM", value_parser = tube_name)]
    pub from: String,
    /// Tube to move them to
    #[arg(value_name = "TO", value_parser = tube_name)]
    pub to: String,
    /// Move the jobs in this state, which they keep: ready, delayed or buried
    #[arg(short, long, value_name = "STATE", default_value = "ready", hide_possible_values = true)]
    #[arg(value_parser = state_among(&[JobState::Ready, JobState::Delayed, JobState::Buried]))]
    pub state: JobState,
    /// Move at most this number of jobs [default: all]
    #[arg(short = 'n', long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = count)]
    pub count: Option<u32>,
    #[command(flatten)]
    pub common: Common,
}
