# SPDX-License-Identifier: BSD-3-Clause
"""A stand-in for `vllm` and `python -m sglang.launch_server`: accepts their documented options and no others, and checks
them by use. The processes of all nodes meet at the given address; the first then has an HTTP server, which connects to
HOST:PORT for GET /HOST:PORT, as vLLM does to receive weights from a trainer."""
import argparse
import http.server
import json
import os
import socket
import sys

NAME, ARGUMENTS = sys.argv[1], sys.argv[2:]


def address(text):
    host, _, port = text.rpartition(':')
    return host, int(port)


def vllm():
    parser = argparse.ArgumentParser('vllm', allow_abbrev=False)
    parser.add_argument('command', choices=['serve'])
    parser.add_argument('model')
    parser.add_argument('--port', type=int, default=8000)
    parser.add_argument('--tensor-parallel-size', '-tp', type=int, default=1)
    parser.add_argument('--nnodes', type=int, default=1)
    parser.add_argument('--node-rank', type=int, default=0)
    parser.add_argument('--master-addr', default='127.0.0.1')
    parser.add_argument('--master-port', type=int, default=29501)
    parser.add_argument('--headless', action='store_true')
    parser.add_argument('--weight-transfer-config', type=json.loads)
    parser.add_argument('--logprobs-mode', choices=['raw_logprobs', 'processed_logprobs'])
    parser.add_argument('--max-logprobs', type=int, default=20)
    options = parser.parse_args(ARGUMENTS)
    assert options.headless == (options.node_rank > 0)
    assert options.nnodes == 1 or 'VLLM_HOST_IP' in os.environ, 'takes the address of the default route'
    if options.weight_transfer_config:
        assert os.environ['VLLM_SERVER_DEV_MODE'] == '1'
    return options, (options.master_addr, options.master_port), os.environ.get('VLLM_HOST_IP')


def sglang():
    parser = argparse.ArgumentParser('sglang.launch_server', allow_abbrev=False)
    parser.add_argument('--model-path', required=True)
    parser.add_argument('--tp', type=int, default=1)
    parser.add_argument('--nnodes', type=int, default=1)
    parser.add_argument('--node-rank', type=int, default=0)
    parser.add_argument('--dist-init-addr', type=address)
    parser.add_argument('--host', default='127.0.0.1')
    parser.add_argument('--port', type=int, default=30000)
    options = parser.parse_args(ARGUMENTS)
    assert options.host == '0.0.0.0', 'other nodes cannot reach it'
    assert 'SGLANG_HOST_IP' in os.environ, 'takes the address of the default route'
    return options, options.dist_init_addr, os.environ['SGLANG_HOST_IP']


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != '/health':
            socket.create_connection(address(self.path[1:]), 10).close()
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    options, place, own = (vllm if NAME == 'vllm' else sglang)()
    if options.nnodes > 1 and options.node_rank:
        while True:
            try:
                peer = socket.create_connection(place, 10, (own, 0) if own else None)
                break
            except ConnectionRefusedError:
                pass
        peer.sendall(bytes([options.node_rank]))
        peer.recv(1)  # until the first one ends
        return
    if options.nnodes > 1:
        listener = socket.create_server(place)
        peers = [listener.accept() for _ in range(options.nnodes - 1)]
        assert {peer.recv(1)[0] for peer, _ in peers} == set(range(1, options.nnodes))
        print(NAME, 'meets', *sorted(host for _, (host, _) in peers), flush=True)
    http.server.ThreadingHTTPServer(('', options.port), Handler).serve_forever()


main()
