# SPDX-License-Identifier: BSD-3-Clause
"""Stand-ins for the programs of docs/guides/rl.md: NAME [ARGUMENTS]. Each checks what it was given by use, and says it."""
import http.server
import json
import os
import socket
import sys
import time
import urllib.request

NAME, ARGUMENTS = sys.argv[1], sys.argv[2:]
HOST = socket.gethostname()
GPUS = len([name for name in os.environ.get('CUDA_VISIBLE_DEVICES', '').split(',') if name])


def say(*words):
    print(NAME, 'on', HOST, 'gpus', GPUS, *words, flush=True)


def option(name, default=None):
    return ARGUMENTS[ARGUMENTS.index(name) + 1] if name in ARGUMENTS else default


def urls(*names):
    """What follows each of these options, up to the next one."""
    found, inside = [], False
    for word in ARGUMENTS:
        if word.startswith('--'):
            inside = word in names
        elif inside:
            found.append(word)
    return found


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def serve(about):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(about).encode())

        def log_message(self, *_):
            pass

    http.server.ThreadingHTTPServer(('', int(option('--port'))), Handler).serve_forever()


def orchestrate():
    routers = [get(url.removesuffix('/v1') + '/') for url in urls('--base-url')]
    assert all(url.endswith('/v1') for url in urls('--base-url', '--admin-base-url'))
    say('asks', *(f'{router["host"]}:{",".join(router["workers"])}' for router in routers),
        'admin', *(get(url.removesuffix('/v1') + '/')['host'] for url in urls('--admin-base-url')))


if NAME == 'inference':
    say('replica', os.environ['BERTH_REPLICA'], 'rank', option('--node-rank'), 'head', option('--data-parallel-address'),
        'nixl', os.environ.get('VLLM_NIXL_SIDE_CHANNEL_HOST'))
    serve({'host': HOST})
elif NAME == 'vllm-router':
    # All are ready, or this fails.
    workers = [get(url + '/')['host'] for url in urls('--worker-urls', '--prefill', '--decode')]
    kinds = [word for word in ARGUMENTS if word in ('--worker-urls', '--prefill', '--decode')]
    say('replica', os.environ.get('BERTH_REPLICA'), 'routes', *kinds, *workers)
    serve({'host': HOST, 'workers': workers})
elif NAME == 'torchrun':
    say('node', os.environ['PET_NODE_RANK'], 'of', os.environ['PET_NNODES'], 'at', os.environ['PET_MASTER_ADDR'])
else:
    orchestrate()
while NAME in os.environ.get('HOLDS', '').split():
    time.sleep(0.1)
