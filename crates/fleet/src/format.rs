//! Serialises jobs, results and batches. A file consists of `LSFLEET1`, a byte for its kind, the length of its content,
//! the content, and the XXH3 hash of everything before. Integers are little-endian; strings are preceded by their
//! length. Parsing never panics: truncated or changed bytes give an error.

use crate::ids::{BatchId, Version};
use crate::job::{Answer, Job, JobName, JobResult, Lineage, WorkerName};
use twox_hash::XxHash3_64;

const MAGIC: &[u8; 8] = b"LSFLEET1";
const HEAD: usize = MAGIC.len() + 1 + 8;

const JOB: u8 = 1;
const RESULT: u8 = 2;
const BATCH: u8 = 3;

fn sealed(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEAD + content.len() + 8);
    file.extend_from_slice(MAGIC);
    file.push(kind);
    file.extend_from_slice(&(content.len() as u64).to_le_bytes());
    file.extend_from_slice(content);
    let hash = XxHash3_64::oneshot(&file);
    file.extend_from_slice(&hash.to_le_bytes());
    file
}

fn unsealed(kind: u8, file: &[u8]) -> Result<&[u8], String> {
    if file.len() < HEAD + 8 {
        return Err(format!("truncated: {} bytes", file.len()));
    }
    if &file[..MAGIC.len()] != MAGIC {
        return Err("not a fleet file, or written by another version of this program".to_owned());
    }
    let (body, hash) = file.split_at(file.len() - 8);
    if XxHash3_64::oneshot(body).to_le_bytes() != hash {
        return Err("wrong checksum: the file is truncated or corrupt".to_owned());
    }
    let mut rest = Reader(&body[MAGIC.len()..]);
    let (found, length) = (rest.u8()?, rest.u64()?);
    if found != kind || length != rest.0.len() as u64 {
        return Err(format!(
            "expected kind {kind} with {} bytes of content, got kind {found} with {length} bytes",
            rest.0.len()
        ));
    }
    Ok(rest.0)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or("the content is truncated")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, String> {
        Ok(self.array::<1>()?[0])
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn bytes(&mut self) -> Result<&'a [u8], String> {
        let length = self.u64()?;
        self.take(usize::try_from(length).map_err(|_| "the content is truncated")?)
    }

    fn text(&mut self) -> Result<&'a str, String> {
        std::str::from_utf8(self.bytes()?).map_err(|_| "a string is not valid UTF-8".to_owned())
    }

    fn job(&mut self) -> Result<JobName, String> {
        self.text()?.parse()
    }

    fn end(&self) -> Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err(format!("{} bytes follow the content", self.0.len())) }
    }
}

fn push(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    to.extend_from_slice(bytes);
}

impl Job {
    /// Serialises the job as the bytes of a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut content = Vec::with_capacity(self.payload.len() + 128);
        push(&mut content, self.name.to_string().as_bytes());
        content.extend_from_slice(&self.version.0.to_le_bytes());
        content.extend_from_slice(&self.lineage.0);
        content.push(u8::from(self.alone) | u8::from(self.continues.is_some()) << 1);
        content.extend(self.continues.iter().flat_map(|before| before.to_le_bytes()));
        push(&mut content, self.profile.as_bytes());
        push(&mut content, &self.payload);
        sealed(JOB, &content)
    }

    /// Parses a job from the bytes of a file.
    pub fn from_bytes(file: &[u8]) -> Result<Job, String> {
        let mut content = Reader(unsealed(JOB, file)?);
        let (name, version, lineage) = (content.job()?, Version(content.u64()?), Lineage(content.array()?));
        let flags = content.u8()?;
        let job = Job {
            name,
            version,
            lineage,
            alone: flags & 1 != 0,
            continues: if flags & 2 != 0 { Some(content.u64()?) } else { None },
            profile: content.text()?.to_owned(),
            payload: content.bytes()?.to_vec(),
        };
        content.end().map(|()| job)
    }
}

impl JobResult {
    /// Serialises the result as the bytes of a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut content = Vec::with_capacity(self.bytes.len() + 128);
        push(&mut content, self.job.to_string().as_bytes());
        content.extend_from_slice(&self.lineage.0);
        push(&mut content, self.worker.as_str().as_bytes());
        content.extend_from_slice(&self.answer.fingerprint.to_le_bytes());
        content.push(u8::from(self.answer.more));
        push(&mut content, &self.bytes);
        sealed(RESULT, &content)
    }

    /// Parses a result from the bytes of a file.
    pub fn from_bytes(file: &[u8]) -> Result<JobResult, String> {
        let mut content = Reader(unsealed(RESULT, file)?);
        let result = JobResult {
            job: content.job()?,
            lineage: Lineage(content.array()?),
            worker: WorkerName::new(content.text()?)?,
            answer: Answer { fingerprint: content.u64()?, more: content.u8()? != 0 },
            bytes: content.bytes()?.to_vec(),
        };
        content.end().map(|()| result)
    }
}

/// Serialises the results of a batch as the bytes of a file.
pub fn batch_to_bytes(batch: BatchId, results: &[JobResult]) -> Vec<u8> {
    let mut content = batch.0.to_le_bytes().to_vec();
    for result in results {
        push(&mut content, &result.to_bytes());
    }
    sealed(BATCH, &content)
}

/// Parses the number and the results of a batch from the bytes of a file.
pub fn batch_from_bytes(file: &[u8]) -> Result<(BatchId, Vec<JobResult>), String> {
    let mut content = Reader(unsealed(BATCH, file)?);
    let batch = BatchId(content.u64()?);
    let mut results = Vec::new();
    while !content.0.is_empty() {
        results.push(JobResult::from_bytes(content.bytes()?)?);
    }
    Ok((batch, results))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::chunk;
    use proptest::prelude::*;

    fn job(payload: Vec<u8>) -> Job {
        let (name, version) = (chunk(7, 2), Version(3));
        let (lineage, profile) = (Lineage([9; 16]), "fast".to_owned());
        Job { name, version, lineage, continues: Some(5), alone: true, profile, payload }
    }

    fn result(bytes: Vec<u8>, more: bool) -> JobResult {
        JobResult {
            job: chunk(4, 1),
            lineage: Lineage([3; 16]),
            worker: WorkerName::new("dev1").unwrap(),
            answer: Answer { fingerprint: 77, more },
            bytes,
        }
    }

    proptest! {
        #[test]
        fn values_survive_serialisation(payload: Vec<u8>, more: bool) {
            prop_assert_eq!(Job::from_bytes(&job(payload.clone()).to_bytes()).unwrap(), job(payload.clone()));
            let results = vec![result(payload, more), result(vec![], !more)];
            let (batch, read) = batch_from_bytes(&batch_to_bytes(BatchId(5), &results)).unwrap();
            prop_assert_eq!((batch, read), (BatchId(5), results));
        }

        #[test]
        fn parsing_arbitrary_bytes_does_not_panic(bytes: Vec<u8>, kind in 1u8..4) {
            prop_assert!(Job::from_bytes(&bytes).is_err());
            // If the checksum is right, the content is parsed, too.
            let file = sealed(kind, &bytes);
            let _ = (Job::from_bytes(&file), JobResult::from_bytes(&file), batch_from_bytes(&file));
        }

        #[test]
        fn trailing_bytes_are_refused(payload: Vec<u8>, more in prop::collection::vec(any::<u8>(), 1..9)) {
            let file = job(payload).to_bytes();
            let content = [unsealed(JOB, &file).unwrap(), &more].concat();
            let why = Job::from_bytes(&sealed(JOB, &content)).unwrap_err();
            prop_assert!(why.contains("bytes follow the content"), "{}", why);
        }

        #[test]
        fn flipped_bits_and_truncated_files_are_refused(payload: Vec<u8>, at: usize, bit in 0u8..8) {
            let file = result(payload, true).to_bytes();
            let mut flipped = file.clone();
            flipped[at % file.len()] ^= 1 << bit;
            prop_assert!(JobResult::from_bytes(&flipped).is_err());
            prop_assert!(JobResult::from_bytes(&file[..at % file.len()]).is_err());
            prop_assert!(Job::from_bytes(&file).is_err(), "a result must not parse as a job");
        }
    }

    /// The format is fixed, because files of earlier versions must stay readable.
    #[test]
    fn the_file_format_is_fixed_and_each_fault_is_named() {
        let file = job(b"ab".to_vec()).to_bytes();
        let text = |text: &[u8]| [&(text.len() as u64).to_le_bytes(), text].concat();
        let flags_and_before = [&[3][..], &5u64.to_le_bytes()].concat();
        let content =
            [text(b"000007.2"), 3u64.to_le_bytes().into(), vec![9; 16], flags_and_before, text(b"fast"), text(b"ab")];
        let content = content.concat();
        assert_eq!(file[..17], [b"LSFLEET1", &[1][..], &(content.len() as u64).to_le_bytes()].concat());
        assert_eq!(file[17..file.len() - 8], content);
        assert_eq!(file[file.len() - 8..], XxHash3_64::oneshot(&file[..file.len() - 8]).to_le_bytes());
        for (alone, continues) in [(true, None), (false, Some(5)), (false, None), (true, Some(5))] {
            let job = Job { alone, continues, ..job(Vec::new()) };
            assert_eq!(Job::from_bytes(&job.to_bytes()), Ok(job));
        }
        let why = |bytes: &[u8]| Job::from_bytes(bytes).unwrap_err();
        assert_eq!(why(&file[..24]), "truncated: 24 bytes");
        assert!(why(&file[..25]).starts_with("wrong checksum"), "{}", why(&file[..25]));
        assert_eq!(
            why(&[b"LSFLEET2", &file[8..]].concat()),
            "not a fleet file, or written by another version of this program"
        );
        assert_eq!(
            why(&sealed(2, &content)),
            format!("expected kind 1 with {0} bytes of content, got kind 2 with {0} bytes", content.len())
        );
        assert_eq!(why(&sealed(1, &[content.clone(), vec![0; 3]].concat())), "3 bytes follow the content");
        assert_eq!(why(&sealed(1, &content[..content.len() - 1])), "the content is truncated");
        assert_eq!(why(&sealed(1, &text(&[0xff]))), "a string is not valid UTF-8");
        assert_eq!(why(&sealed(1, &text(b"x"))), "x".parse::<JobName>().unwrap_err());
        assert_eq!(why(&sealed(1, b"")), "the content is truncated");
        let mut longer = file[..file.len() - 8].to_vec();
        longer.push(0);
        let longer = [longer.clone(), XxHash3_64::oneshot(&longer).to_le_bytes().into()].concat();
        let (declared, actual) = (content.len(), content.len() + 1);
        assert_eq!(
            why(&longer),
            format!("expected kind 1 with {actual} bytes of content, got kind 1 with {declared} bytes")
        );
    }
}
