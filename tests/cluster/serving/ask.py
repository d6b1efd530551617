# SPDX-License-Identifier: BSD-3-Clause
"""Asks the server as docs/guides/serving.md does, and as a trainer of its second part lets it connect for the weights."""
import os
import socket
import sys
import urllib.request

URL = sys.argv[2].removesuffix('/v1') if len(sys.argv) > 2 else \
    f'http://{os.environ["BERTH_ROLE_SERVE_ADDR"]}:{os.environ["BERTH_ROLE_SERVE_PORT"]}'
with urllib.request.urlopen(f'{URL}/health', timeout=10) as answer:
    print('answer', answer.status, 'from', os.environ['BERTH_ROLE_SERVE_ADDR'], flush=True)
if 'BERTH_ROLE_TRAIN_ADDR' in os.environ and os.environ['RANK'] == '0':
    PLACE = os.environ['BERTH_ROLE_TRAIN_ADDR'], int(os.environ['BERTH_PORTS'])
    with socket.create_server(PLACE) as listener:
        urllib.request.urlopen('%s/%s:%d' % (URL, *PLACE), timeout=10).close()
        print('weights to', listener.accept()[1][0], flush=True)
