# SPDX-License-Identifier: BSD-3-Clause
"""Hooks of mkdocs. No page is written twice: the files at the project's top and in examples/ become pages, and links lead to the
pages of the site. Links to other files lead to the repository, if mkdocs.yml has a repo_url; otherwise their text stays."""
import os
import posixpath
import re

from mkdocs.structure.files import File

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = ['README.md', 'CONTRIBUTING.md', 'SECURITY.md', 'CHANGELOG.md', 'examples/README.md']
LINK = re.compile(r'(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)')


def on_files(files, config):
    for name in PAGES:
        with open(os.path.join(TOP, name), encoding='utf-8') as file:
            files.append(File.generated(config, name, content=file.read()))
    return files


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    at_top = uri in PAGES
    here = posixpath.dirname(uri if at_top else 'docs/' + uri)

    def link(match):
        image, text, target, anchor = match.groups()
        if re.match(r'[a-z]+:', target):
            return match[0]
        path = posixpath.normpath(posixpath.join(here, target))
        if not os.path.exists(os.path.join(TOP, path)):
            return match[0]  # --strict reports it
        source = path[len('docs/'):] if path.startswith('docs/') else path
        if files.get_file_from_path(source):
            return f'{image}[{text}]({posixpath.relpath(source, posixpath.dirname(uri) or ".")}{anchor or ""})'
        if config.repo_url:
            return f'[{text}]({config.repo_url.rstrip("/")}/blob/HEAD/{path})'
        return text

    # Indented lines are output of berth.
    return '\n'.join(line if line.startswith('    ') else LINK.sub(link, line) for line in markdown.split('\n'))
