//! Groups: jobs that wait until all jobs with a tag are deleted.

use beanring::queue::JobState;
use beanring::time::Seconds;

use super::{Job, Model, Place, Tags};

impl Model {
    /// The place of a job that is put now, before it is there.
    pub(super) fn first_place(&mut self, delay: Seconds, tags: Tags) -> Place {
        if !self.is_behind(tags) {
            return self.ready_or_delayed(delay);
        }
        Place::Held { until: self.now + delay.span(), turn: self.next_turn(), is_free: false }
    }

    /// Whether a job with these tags has to wait.
    fn is_behind(&self, tags: Tags) -> bool {
        tags.aft.is_some() && self.jobs.iter().any(|job| job.tags.grp == tags.aft)
    }

    /// Releases the held jobs whose group is done, the longest wait first.
    pub(super) fn release_held(&mut self) {
        self.release_if(|model, job| !is_free(job) && !model.is_behind(job.tags));
    }

    /// Releases the jobs whose group was done at the start.
    pub(super) fn release_free(&mut self) {
        self.release_if(|_, job| is_free(job));
    }

    /// Notes at the start which held jobs are to be released.
    pub fn note_done_groups(&mut self) {
        let behind: Vec<bool> = self.jobs.iter().map(|job| self.is_behind(job.tags)).collect();
        for (job, is_behind) in self.jobs.iter_mut().zip(behind) {
            if let Place::Held { is_free, .. } = &mut job.place {
                *is_free = !is_behind;
            }
        }
    }

    /// The group that a held job waits for, and the number of its members.
    pub fn group_ahead_of(&self, job: &Job) -> Option<(u8, u32)> {
        let Place::Held { is_free, .. } = job.place else { return None };
        let members = self.jobs.iter().filter(|other| !is_free && other.tags.grp == job.tags.aft);
        Some((job.tags.aft.expect("a held job waits for a group"), members.count() as u32))
    }

    fn release_if(&mut self, may: impl Fn(&Self, &Job) -> bool) {
        let turn = |job: &Job| match job.place {
            Place::Held { turn, .. } => Some(turn),
            _ => None,
        };
        let held = self.jobs.iter().filter(|job| turn(job).is_some() && may(self, job));
        let mut released: Vec<(Option<u64>, u64)> = held.map(|job| (turn(job), job.id)).collect();
        released.sort();
        for (_, id) in released {
            let at = self.find(id, |_| true).expect("the job is there");
            match self.jobs[at].place {
                Place::Held { until, .. } if until > self.now => {
                    self.jobs[at].entered = self.next_turn();
                    self.jobs[at].place = Place::Delayed { until };
                }
                _ => self.make_ready(at),
            }
        }
    }

    /// The members of a group by state, the number of jobs that wait for it, and the groups that its members wait for, sorted. `None` if
    /// the group has no member.
    pub fn group(&self, name: u8) -> Option<([u32; JobState::COUNT], usize, Vec<u8>)> {
        let (mut members, mut ahead) = ([0; JobState::COUNT], Vec::new());
        for job in self.jobs.iter().filter(|job| job.tags.grp == Some(name)) {
            members[job.state() as usize] += 1;
            ahead.extend(job.tags.aft.filter(|_| job.state() == JobState::Held));
        }
        ahead.sort();
        ahead.dedup();
        let waiting = |job: &&Job| job.state() == JobState::Held && job.tags.aft == Some(name);
        let waiting = self.jobs.iter().filter(waiting).count();
        (members != [0; JobState::COUNT]).then_some((members, waiting, ahead))
    }
}

fn is_free(job: &Job) -> bool {
    matches!(job.place, Place::Held { is_free: true, .. })
}
