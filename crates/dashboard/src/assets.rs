//! The files of the web page, compiled into the program. `assets` has a folder for each section; a file's path in it is
//! its URL. Third-party files are in `assets/vendor`, unmodified.

/// Name and contents of a file.
type Asset = (&'static str, &'static [u8]);

macro_rules! assets {
    ($($name:literal)*) => { &[$(($name, include_bytes!(concat!("../assets/", $name)))),*] };
}

/// All files of the page; `index.html` is the page itself.
const ASSETS: &[Asset] = assets! {
    "index.html"
    "lib/lib.js" "lib/diff.js" "lib/series.js" "lib/spark.js"
    "shell/theme.js" "shell/theme.css" "shell/style.css" "shell/app.js" "shell/head.js" "shell/live.js"
    "shell/notices.js" "shell/tour.js" "shell/tour.css"
    "home/home.js" "home/overlay.js" "home/home.css"
    "overview/overview.js" "overview/results.js" "overview/then.js" "overview/overview.css"
    "charts/charts.js" "charts/chart.js" "charts/curve.js" "charts/marks.js" "charts/units.js" "charts/metrics.js"
    "charts/families.js" "charts/tools.js" "charts/full.js" "charts/export.js" "charts/lanes.js" "charts/charts.css"
    "rollouts/rollouts.js" "rollouts/map.js" "rollouts/filters.js" "rollouts/list.js" "rollouts/prompts.js"
    "rollouts/pick.js" "rollouts/fold.js" "rollouts/rollouts.css"
    "reader/group.js" "reader/completion.js" "reader/windows.js" "reader/tokens.js" "reader/pushed.js"
    "reader/think.js" "reader/spaces.js" "reader/pair.js" "reader/copy.js" "reader/reader.css"
    "rendered/rendered.js" "rendered/markdown.js" "rendered/inline.js" "rendered/code.js" "rendered/math.js"
    "rendered/rendered.css"
    "time/time.js" "time/stages.js" "time/bars.js" "time/stack.js" "time/spans.js" "time/profile.js" "time/time.css"
    "run/run.js" "levels/levels.js" "levels/ladder.js"
    "vendor/uplot-1.6.32/uPlot.iife.min.js" "vendor/uplot-1.6.32/uPlot.min.css"
    "vendor/temml-0.13.5/temml.min.js" "vendor/temml-0.13.5/Temml-Local.css" "vendor/temml-0.13.5/Temml.woff2"
    "vendor/stix-two-math-5.3.0/stix-two-math-latin-400-normal.woff2"
    "vendor/source-serif-4-5.3.1/source-serif-4-latin-400-normal.woff2"
    "vendor/source-serif-4-5.3.1/source-serif-4-latin-400-italic.woff2"
    "vendor/source-serif-4-5.3.1/source-serif-4-latin-600-normal.woff2"
    "vendor/source-sans-3-5.3.1/source-sans-3-latin-400-normal.woff2"
    "vendor/source-sans-3-5.3.1/source-sans-3-latin-600-normal.woff2"
    "vendor/source-code-pro-5.3.1/source-code-pro-latin-400-normal.woff2"
};

/// The contents and content type of the file `name` in `ASSETS`.
pub fn asset(name: &str) -> Option<(&'static [u8], &'static str)> {
    let name = if name.is_empty() { "index.html" } else { name };
    let (name, content) = ASSETS.iter().find(|(known, _)| *known == name)?;
    let kind = match name.rsplit_once('.').map(|(_, end)| end) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        _ => "font/woff2",
    };
    Some((content, kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    /// Third-party files must have their recorded hashes, and each package must have its licence.
    #[test]
    fn vendored_files_are_unchanged() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/vendor");
        let list: toml::Table = std::fs::read_to_string(root.join("VENDOR.toml")).unwrap().parse().unwrap();
        let mut listed = 0;
        for package in list["package"].as_array().unwrap() {
            let dir = root.join(package["name"].as_str().unwrap());
            let files = package["files"].as_table().unwrap();
            assert!(files.contains_key("LICENSE"), "{}", dir.display());
            for (file, hash) in files {
                let digest = Sha256::digest(std::fs::read(dir.join(file)).unwrap());
                let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
                assert_eq!(Some(digest.as_str()), hash.as_str(), "{file}");
            }
            assert_eq!(std::fs::read_dir(&dir).unwrap().count(), files.len());
            listed += 1;
        }
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), listed + 1, "all packages are listed");
    }

    #[test]
    fn every_file_of_the_page_is_compiled_in() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
        let sections = std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
        for section in sections.filter(|path| path.is_dir() && !path.ends_with("vendor")) {
            for file in std::fs::read_dir(section).unwrap() {
                let path = file.unwrap().path();
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
                assert!(asset(name).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn assets_are_found_by_name_with_their_content_type() {
        assert!(asset("").unwrap().1.starts_with("text/html"));
        let kinds =
            ["shell/style.css", "shell/app.js", "vendor/source-code-pro-5.3.1/source-code-pro-latin-400-normal.woff2"];
        let kinds = kinds.map(|name| asset(name).unwrap().1);
        assert_eq!(kinds, ["text/css; charset=utf-8", "text/javascript; charset=utf-8", "font/woff2"]);
        assert_eq!(asset("index.html").unwrap().0, asset("").unwrap().0);
        assert!(asset("../Cargo.toml").is_none() && asset("vendor").is_none());
    }
}
