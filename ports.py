import os, socket, sys
first, last = map(int, os.environ['BERTH_PORTS'].split('-'))
# As servers do, but for one: Python's create_server sets SO_REUSEADDR.
held = [socket.create_server(('', port)) for port in range(first, last + 1)]
print(first, last, flush=True)
open(f'up.{sys.argv[1]}', 'w').close()
while not os.path.exists('over'): __import__('time').sleep(0.05)
