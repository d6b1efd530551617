# SPDX-License-Identifier: BSD-3-Clause
"""A registry with one image, as far as a pull needs it: registry.py ROOT

The image's only layer is the directory ROOT; each name and tag is that image. Prints its port on 127.0.0.1, then a line
for each layer that it sends, which waits half-way while there is a file ROOT.hold.
"""
import gzip
import hashlib
import http.server
import io
import json
import os
import sys
import tarfile
import time

ROOT = sys.argv[1]
MANIFEST = 'application/vnd.oci.image.manifest.v1+json'
blobs = {}


def digest(data):
    return 'sha256:' + hashlib.sha256(data).hexdigest()


def blob(data, kind):
    blobs[digest(data)] = data
    return {'mediaType': 'application/vnd.oci.image.' + kind, 'digest': digest(data), 'size': len(data)}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.rpartition('/')[2]
        data = b'{}' if name == '' else manifest if '/manifests/' in self.path else blobs.get(name)
        is_layer = name == layer['digest'] and self.command == 'GET'
        if is_layer:
            print('layer', flush=True)
        self.send_response(200 if data else 404)
        self.send_header('Content-Type', MANIFEST if data is manifest else 'application/octet-stream')
        self.send_header('Content-Length', str(len(data or b'')))
        self.end_headers()
        if self.command == 'HEAD' or not data:
            return
        try:
            self.wfile.write(data[:len(data) // 2])
            while is_layer and os.path.exists(ROOT + '.hold'):
                time.sleep(0.1)
            self.wfile.write(data[len(data) // 2:])
        except OSError:
            pass  # the client has gone

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


plain = io.BytesIO()
with tarfile.open(fileobj=plain, mode='w') as tar:
    tar.add(ROOT, '.')
plain = plain.getvalue()
layer = blob(gzip.compress(plain, 1), 'layer.v1.tar+gzip')
config = blob(json.dumps({'architecture': 'amd64', 'os': 'linux', 'config': {},
                          'rootfs': {'type': 'layers', 'diff_ids': [digest(plain)]}}).encode(), 'config.v1+json')
manifest = json.dumps({'schemaVersion': 2, 'mediaType': MANIFEST, 'config': config, 'layers': [layer]}).encode()
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
