//! The pages in Markdown: that what they lead to is there.

mod support;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use support::root;

/// What a page says to a reader, as far as it can be checked.
#[derive(Default)]
struct Page {
    /// Of headings, as GitHub makes them.
    anchors: BTreeSet<String>,
    links: Vec<String>,
    /// Words in backquotes.
    words: Vec<String>,
}

impl Page {
    fn read(file: &Path) -> Self {
        let text = fs::read_to_string(file).unwrap();
        let mut page = Self::default();
        let mut heading = None;
        for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => page.add_anchor(&heading.take().unwrap()),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.to_string());
                }
                Event::Text(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    }
                    page.words.push(code.to_string());
                }
                _ => {}
            }
        }
        page
    }

    fn add_anchor(&mut self, heading: &str) {
        let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
        let anchor: String = heading.to_lowercase().chars().filter(kept).collect();
        let anchor = anchor.replace(' ', "-");
        let mut unique = anchor.clone();
        for n in 1.. {
            if self.anchors.insert(unique) {
                break;
            }
            unique = format!("{anchor}-{n}");
        }
    }
}

/// All pages, by their path from the checkout.
fn pages() -> BTreeMap<PathBuf, Page> {
    let mut pages = BTreeMap::new();
    for dir in ["", "docs", "examples"] {
        for entry in fs::read_dir(root().join(dir)).unwrap() {
            let file = entry.unwrap().path();
            if file.extension().is_some_and(|extension| extension == "md") {
                let name = file.strip_prefix(root()).unwrap().to_path_buf();
                pages.insert(name, Page::read(&file));
            }
        }
    }
    assert!(pages.contains_key(Path::new("README.md")));
    pages
}

/// A relative path from the checkout, without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}

/// Where a link of a page leads: a file of the checkout, and an anchor.
fn target(page: &Path, link: &str) -> Option<(PathBuf, Option<String>)> {
    if link.contains("://") {
        return None;
    }
    let (file, anchor) = match link.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor.to_string())),
        None => (link, None),
    };
    let file = match file {
        "" => page.to_path_buf(),
        file => normal(&page.parent().unwrap().join(file)),
    };
    Some((file, anchor))
}

#[test]
fn links_lead_somewhere() {
    let pages = pages();
    let mut broken = vec![];
    let mut count = 0;
    for (name, page) in &pages {
        for link in &page.links {
            let Some((file, anchor)) = target(name, link) else {
                continue;
            };
            count += 1;
            let there = match (pages.get(&file), &anchor) {
                (Some(page), Some(anchor)) => page.anchors.contains(anchor),
                (None, Some(_)) => false,
                (_, None) => root().join(&file).exists(),
            };
            if !there {
                broken.push(format!("{}: {link}", name.display()));
            }
        }
    }
    assert!(count > 50, "only {count} links were found");
    assert!(
        broken.is_empty(),
        "these links lead nowhere:\n{}",
        broken.join("\n")
    );
}

#[test]
fn every_page_can_be_reached_from_the_front_page() {
    let pages = pages();
    let mut reached = BTreeSet::new();
    let mut next = vec![PathBuf::from("README.md")];
    while let Some(name) = next.pop() {
        if let Some(page) = pages.get(&name)
            && reached.insert(name.clone())
        {
            let targets = page.links.iter().filter_map(|link| target(&name, link));
            next.extend(targets.map(|(file, _)| file));
        }
    }
    let lost: Vec<_> = pages
        .keys()
        .filter(|name| !reached.contains(*name))
        .collect();
    assert!(lost.is_empty(), "no link leads to {lost:?}");
}

/// Files that are named are there, so that a page that is out of date shows.
#[test]
fn files_that_are_named_are_there() {
    let places = [
        "bindgen/",
        "c-tests/",
        "docs/",
        "examples/",
        "include/",
        "man/",
        "pkgconfig/",
        "scripts/",
        "softverbs/",
        "src/",
        "tests/",
        "tools/",
    ];
    let pages = pages();
    let mut missing = vec![];
    let mut count = 0;
    for (name, page) in &pages {
        for word in &page.words {
            let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
            if !places.iter().any(|place| word.starts_with(place)) || !word.chars().all(plain) {
                continue;
            }
            count += 1;
            // A program of tests is named as cargo does.
            let names = [word.clone(), format!("{word}.rs")];
            if !names.iter().any(|name| root().join(name).exists()) {
                missing.push(format!("{}: `{word}`", name.display()));
            }
        }
    }
    assert!(count > 50, "only {count} files were found");
    assert!(missing.is_empty(), "not there:\n{}", missing.join("\n"));
}
