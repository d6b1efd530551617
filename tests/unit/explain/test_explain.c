/* SPDX-License-Identifier: BSD-3-Clause */
/* Known failures: a line as printed by a program matches each row, and healthy logs match none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "explain/explain.h"

/* A line, and words of the cause that it must match. */
static const struct {
	const char *line, *cause;
	bool in_child;
} known[] = {
	{"torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
	 "not all torchrun agents joined"},
	{"torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to "
	 "the C10d store has failed. See inner exception for details.",
	 "found no store"},
	{"ValueError: Number of processes must be defined.", "only under Slurm and Open MPI"},
	{"FATAL:   \"nosuch\": executable file not found in $PATH", "no such program in its PATH"},
	{"FATAL:   While checking container encryption: could not open image /scratch/none.sif: "
	 "failed "
	 "to retrieve path for /scratch/none.sif: lstat /scratch/none.sif: no such file or "
	 "directory",
	 "does not see the image"},
	{"FATAL:   container creation failed: image driver mount failure: image driver "
	 "squashfuse_ll "
	 "instance exited with error: squashfuse_ll exited: Something went wrong trying to read "
	 "the "
	 "squashfs image.",
	 "could not make a container"},
	{"RuntimeError: use_libuv was requested but PyTorch was build without libuv support",
	 "built without it"},
	{"[W socket.cpp:601] [c10d] The IPv6 network addresses of (node-0, 29500) cannot be "
	 "retrieved (gai error: -2 - Name or service not known).",
	 "does not resolve on this node"},
	{"[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to "
	 "connect to (10.0.3.7, 29500).",
	 "cannot be reached from this node"},
	{"[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 "
	 "- Address already in use).",
	 "another program uses MASTER_PORT"},
	{"[E socket.cpp:435] [c10d] The server socket has failed to listen on any local network "
	 "address. The server socket has failed to bind to ?UNKNOWN? (errno: 98 - Address already "
	 "in use).",
	 "another program uses MASTER_PORT"},
	{"[WARNING] The node 'nid0012_4711_0' has failed to send a keep-alive heartbeat to the "
	 "rendezvous 'none' due to an error of type RendezvousTimeout.",
	 "the node that hosts"},
	{"RuntimeError: [6] is setting up NCCL communicator and retrieving ncclUniqueId from [0] "
	 "via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout",
	 "rank 0 was late"},
	{"[rank0]:[E321 02:07:08.408 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective "
	 "operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, Timeout(ms)=600000) ran for "
	 "600004 milliseconds before timing out.",
	 "not all ranks joined"},
	{"gpu004:2200689:2200706 [3] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed "
	 "by remote peer gpu004<55693>",
	 "ended"},
	{"RuntimeError: CUDA error: an illegal memory access was encountered",
	 "outside of its memory"},
	{"OSError: [Errno 28] No space left on device", "file system is full"},
	{"berth-train: ckpt: No space left on device: a checkpoint needs 205.1 MB, but 12.0 MB are "
	 "free. Earlier checkpoints are unchanged",
	 "file system of the checkpoints is full"},
	{"berth-train: warning: rank 1: cannot save the checkpoint of step 6: cannot write "
	 "c/step-00000006.safetensors: Disk quota exceeded. Earlier checkpoints are unchanged",
	 "quota on the file system of the checkpoints"},
	{"berth-train: m/metrics.jsonl: No space left on device", "a file system is full"},
	{"OSError: [Errno 122] Disk quota exceeded", "quota"},
	{"nid001:4711:4711 [0] misc/socket.cc:305 NCCL WARN Bootstrap : no socket interface found",
	 "lacks"},
	{"gpu-3:812:990 [2] NCCL WARN ncclSocketInit: connecting to address  with family 59936 is "
	 "neither AF_INET(2) nor AF_INET6(10)",
	 "no usable interface"},
	{"nid001:99:99 [0] plugin/net.cc:200 NCCL WARN Error: network AWS Libfabric not found.",
	 "plugin"},
	{"node7:2:9 [1] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_modify_qp failed with error "
	 "Connection timed out errno 110",
	 "cannot reach each other"},
	{"node7:2:9 [1] transport/net_ib.cc:1293 NCCL WARN NET/IB : Got completion from peer "
	 "10.2.0.8<47> with error 12, opcode 0, len 0, vendor err 129",
	 "never acknowledged"},
	{"node7:2:9 [1] misc/ibvwrap.cc:84 NCCL WARN Call to ibv_reg_mr_iova2 failed with error "
	 "Cannot allocate memory",
	 "ulimit -l"},
	{"libfabric:1:1:cxi:core:cxip_cq_eq_progress(): Cassini Event Queue overflow detected.",
	 "Slingshot's event queue"},
	{"mpiexec: RPC failed: No VNIs available in internal allocator", "PALS"},
	{"transport/p2p.cc:240 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not "
	 "supported between these two devices",
	 "only its own GPU"},
	{"cuIpcOpenMemHandle return value:   1, invalid argument", "only its own GPU"},
	{"n1:77:99 [0] init.cc:795 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on "
	 "CUDA device 3b000",
	 "the same GPU"},
	{"ValueError: invalid literal for int() with base 10: "
	 "'GPU-8932f937-d72c-4106-c12f-20bd9faed9f6'",
	 "UUIDs"},
	{"ValueError: invalid literal for int() with base 10: 'MIG-1f2a'", "MIG"},
	{"RuntimeError: CUDA error: no CUDA-capable device is detected", "no GPU is visible"},
	{"RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet "
	 "initialized",
	 "fabric manager"},
	{"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; "
	 "39.59 GiB total capacity)",
	 "GPU's memory is full"},
	{"RuntimeError: unable to open shared memory object </torch_4711_3> in read-write mode: "
	 "Too many open files (24)",
	 "open files"},
	{"RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is "
	 "possible that dataloader's workers are out of shared memory.",
	 "/dev/shm"},
	{"misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-LM1T5f to 9637888 "
	 "bytes: No space left on device (28)",
	 "/dev/shm is full"},
	{"slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4711.batch. Some of your "
	 "processes may have been killed by the cgroup out-of-memory handler.",
	 "more memory"},
	{"slurmstepd: error: Detected 3 oom_kill events in StepId=4711.0. Some of the step tasks "
	 "have been OOM Killed.",
	 "more memory"},
	{"PMIX ERROR: AF_UNIX path too long: /scratch/users/somebody/jobs/very/long", "TMPDIR"},
	{"The application appears to have been direct launched using \"srun\",", "without the PMI"},
	{"x1921c0s0b0n0: ping RPC timeout on nid2 after 120s", "PALS received no answer"},
	{"Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to "
	 "avoid your system being overloaded",
	 "one thread"},
	{"ValueError: You set `--ntasks=8` in your SLURM bash script, but this variable is not "
	 "supported.",
	 "Lightning"},
	{"slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO TIME LIMIT "
	 "***",
	 "reached its time limit"},
	{"slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO "
	 "PREEMPTION ***",
	 "priority"},
	{"slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO NODE "
	 "FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
	 "a node of the job failed"},
	{"slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO JOB "
	 "REQUEUE ***",
	 "the job was requeued"},
	{"torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
	 "network address. port: 29777, useIpv6: false, code: -98, name: EADDRINUSE, message: "
	 "address already in use",
	 "another program uses MASTER_PORT"},
	{"torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
	 "network address. port: 29777, useIpv6: false, code: -98, name: EADDRINUSE, message: "
	 "address already in use",
	 "starts processes itself", true},
	{"RuntimeError: The server socket has failed to listen on any local network address. The "
	 "server socket has failed to bind to [::]:55359 (errno: 98 - Address already in use).",
	 "starts processes itself", true},
	{"ConnectionRefusedError: [Errno 111] Connection refused", "no process listens"},
	{"[rank0]: RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
	 "pair.cc:561] Connection closed by peer [127.0.0.1]:51094. This is typically caused by a "
	 "remote worker crashing.",
	 "another rank ended or crashed"},
	{"[rank1]: RuntimeError: Expected to have finished reduction in the prior iteration before "
	 "starting a new one. This error indicates that your module has parameters that were not "
	 "used in producing loss.",
	 "took no part in the loss"},
	{"RuntimeError: CUDA error: device-side assert triggered", "out of range"},
	{"OSError: libcudnn.so.9: cannot open shared object file: No such file or directory",
	 "cuDNN is not installed"},
	{"n1:77:99 [0] transport/net_ib.cc:1874 NCCL WARN NET/IB : Got completion from peer "
	 "10.1.0.4<51234> with status=12 opcode=1 len=0 vendor err 129 (Recv) hca mlx5_0",
	 "never acknowledged"},
	{"=>> PBS: job killed: walltime 26 exceeded limit 10", "reached its time limit"},
	{"=>> PBS: job killed: mem 2097152kb exceeded limit 1048576kb", "more memory"},
	{"torch.distributed.elastic.multiprocessing.api: [WARNING] Received Signals.SIGTERM death "
	 "signal, shutting down workers",
	 "scheduler sent torchrun SIGTERM"},
};

/* Lines of healthy programs, or of unrelated failures. */
static const char *const unrelated[] = {
	"",
	"epoch 1/3  step 100/600  loss 0.4415  0:21 left  13589 images/s  lr 0.1  data wait 0.18 "
	"ms",
	"stopping after step 146: the job's time limit is reached in 3 s (a step takes 0.10 s, a "
	"checkpoint 0.00 s)",
	"nid001:4711:4711 [0] NCCL INFO Bootstrap : Using hsn0:10.9.0.11<0>",
	"nid001:4711:4711 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB "
	"ib0:10.1.0.4<0>",
	"nid001:4711:4711 [0] NCCL INFO Connected all rings",
	"n1:1:1 [0] NCCL INFO P2P plugin IBext",
	"NCCL version 2.20.5+cuda12.4",
	"slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-20T10:00:00 ***",
	"srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
	"Traceback (most recent call last):",
	"FileNotFoundError: [Errno 2] No such file or directory: 'data/train'",
	"ValueError: invalid literal for int() with base 10: 'ten'",
	"OSError: [Errno 98] Address already in use",
	"[W socket.cpp:663] [c10d] The client socket has failed to connect to [n1]:29500 (errno: "
	"111 - Connection refused).",
	"OSError: [Errno 24] Too many open files",
	"Segmentation fault (core dumped)",
	"bind to [::]:29500 succeeded",
	"OMP_NUM_THREADS=8",
	"CUDA_VISIBLE_DEVICES=GPU-8932f937",
	"DataLoader worker 3 is ready",
	"a torch store at 10.0.3.7, 29500",
	"network not found in the cache; downloading",
	"\xff\xfe\x80 bytes that are no text",
};

static void each_row(void **state)
{
	size_t met = 0;

	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		const struct explain_row *row = explain_line(known[i].line, known[i].in_child);

		print_message("%s\n", known[i].line);
		assert_non_null(row);
		assert_non_null(strstr(row->cause, known[i].cause));
	}
	for (size_t i = 0; i < explain_row_count; i++) {
		size_t lines = 0;

		for (size_t k = 0; k < sizeof known / sizeof *known; k++)
			lines += explain_line(known[k].line, known[k].in_child) == &explain_rows[i];
		if (!lines)
			print_message("no line meets: %s\n", explain_rows[i].substrings[0]);
		met += lines > 0;
		assert_true(explain_rows[i].cause[0] && explain_rows[i].fix[0] &&
			    explain_rows[i].source[0]);
	}
	assert_int_equal(met, explain_row_count);
}

static void healthy(void **state)
{
	for (size_t i = 0; i < sizeof unrelated / sizeof *unrelated; i++) {
		const struct explain_row *row = explain_line(unrelated[i], true);

		if (row)
			print_message("'%s' is taken for: %s\n", unrelated[i], row->cause);
		assert_null(row);
	}
	assert_null(explain_line(NULL, true));
	assert_false(explain_is_child(NULL));
	assert_false(
		explain_is_child("  File \"/usr/lib/python3/torch/serialization.py\", line 1"));
	assert_true(explain_is_child(
		"  File \"/x/torch/multiprocessing/spawn.py\", line 69, in _wrap"));
}

static void exceptions(void **state)
{
#define TRACEBACK "Traceback (most recent call last):\n"
	static const struct {
		const char *lines, *text, *file; /* text NULL: none */
		int line;
	} rows[] = {
		{TRACEBACK "  File \"/t.py\", line 5, in <module>\n    f(0)\n"
			   "  File \"/t.py\", line 3, in f\n    return 1 // x\n           ~~^^~~\n"
			   "ZeroDivisionError: integer division or modulo by zero",
		 "ZeroDivisionError: integer division or modulo by zero", "/t.py", 3},
		/* The program's own frame, not the library's; PyTorch's prefix. */
		{"[rank1]: " TRACEBACK "[rank1]:   File \"my model.py\", line 12, in main\n"
		 "[rank1]:   File \"/usr/lib/python3/dist-packages/torch/x.py\", line 9, in y\n"
		 "[rank1]: torch.cuda.OutOfMemoryError: CUDA out of memory",
		 "torch.cuda.OutOfMemoryError: CUDA out of memory", "my model.py", 12},
		{TRACEBACK
		 "  File \"<frozen runpy>\", line 198, in _run\n"
		 "  File \"/usr/lib/python3.11/os.py\", line 680, in __getitem__\nKeyError: 'X'",
		 "KeyError: 'X'", "/usr/lib/python3.11/os.py", 680},
		/* A chain: the last exception ended the program. */
		{TRACEBACK
		 "  File \"a.py\", line 1, in a\nKeyError: 1\n\n"
		 "During handling of the above exception, another exception occurred:\n\n" TRACEBACK
		 "  File \"b.py\", line 2, in b\nValueError: two\nlines: more",
		 "ValueError: two", "b.py", 2},
		{"  File \"c.py\", line 7\n    x = = 1\n        ^\nSyntaxError: invalid syntax",
		 "SyntaxError: invalid syntax", "c.py", 7},
		{TRACEBACK "  File \"d.py\", line 3, in <module>\nKeyboardInterrupt",
		 "KeyboardInterrupt", "d.py", 3},
		{"ValueError: printed by the program"},
		{TRACEBACK "  File \"e.py\", line 3, in <module>\n    raise"},
		{"  File \"f.py\", line many\nError: x"},
		{"File \"g.py\", line 3\nError: not indented"},
		{TRACEBACK "  File \"h.py\", line 3, in h\n[rank: ]: Error: not a prefix"},
		{""},
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct explain_exception seen = {0};
		json_t *lines = json_array();
		char text[1024], *rest = text, *line;
		bool found;

		snprintf(text, sizeof text, "%s", rows[i].lines);
		while ((line = strsep(&rest, "\n")))
			json_array_append_new(lines, json_string(line));
		found = explain_exception(lines, &seen);
		json_decref(lines);
		if (found != (rows[i].text != NULL) ||
		    (found && (strcmp(seen.text, rows[i].text) || strcmp(seen.file, rows[i].file) ||
			       seen.line != rows[i].line)))
			fail_msg("row %zu: %d '%s' %s:%d", i, found, seen.text, seen.file,
				 seen.line);
	}
	assert_false(explain_exception(NULL, &(struct explain_exception){0}));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(each_row), cmocka_unit_test(healthy),
					   cmocka_unit_test(exceptions)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
