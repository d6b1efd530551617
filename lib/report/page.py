# SPDX-License-Identifier: BSD-3-Clause
"""page.html as the C string file_text, with the hash of its script, which is then the only one that browsers run."""
import base64
import hashlib
import json
import re
import sys

with open(sys.argv[1], encoding='ascii') as source:
    page = source.read()
script = re.search(r'<script>(.*?)</script>', page, re.S).group(1)
digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
page = page.replace("script-src 'unsafe-inline'", f"script-src 'sha256-{digest}'")
print('static const char file_text[] =')
print('\n'.join(json.dumps(line) for line in page.splitlines(True)) + ';')
