# SPDX-License-Identifier: BSD-3-Clause
"""A server that doubles a number: GET /X answers 2 X. [PORT]: else its own of --ports.

By uvicorn, and with a PyTorch model, where Python has them."""
import http.server
import os
import sys

try:
    import torch
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(2)
except ImportError:
    torch = None
try:
    import uvicorn
except ImportError:
    uvicorn = None

ADDRESS = os.environ['BERTH_ROLE_SERVE_ADDR']
PORT = int(sys.argv[1] if len(sys.argv) > 1 else os.environ['BERTH_PORTS'])


def answer(path):
    x = float(path.rpartition('/')[2] or 0)
    return b'%f' % (model(torch.tensor([x])).item() if torch else 2 * x)


async def app(scope, _receive, send):
    await send({'type': 'http.response.start', 'status': 200})
    await send({'type': 'http.response.body', 'body': answer(scope['path'])})


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer(self.path))

    def log_message(self, *_):
        pass


print('serves with', uvicorn.__name__ if uvicorn else 'http.server', flush=True)
if uvicorn:
    uvicorn.run(app, host=ADDRESS, port=PORT, lifespan='off', log_level='warning')
else:
    http.server.ThreadingHTTPServer((ADDRESS, PORT), Handler).serve_forever()
