/* SPDX-License-Identifier: BSD-3-Clause */
/* On which rank the others wait, from stacks as py-spy, gdb and eu-stack print them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "explain/stacks.h"

#define PY(frames)                                                                                 \
	"process 7 (python train.py)\nProcess 7: python train.py\nPython v3.11.2 "                 \
	"(/usr/bin/python3)\n\n"                                                                   \
	"Thread 9 (idle): \"Thread-1\"\n    wait (python3.11/threading.py:331)\n"                  \
	"Thread 7 (active): \"MainThread\"\n" frames
#define BACKWARD                                                                                   \
	PY("    _engine_run_backward (site-packages/torch/autograd/graph.py:841)\n"                \
	   "    Tensor.backward (site-packages/torch/_tensor.py:630)\n"                            \
	   "    main (/home/me/train.py:63)\n    <module> (/home/me/train.py:80)\n")
#define LOAD PY("    load_shard (/home/me/data.py:58)\n    main (/home/me/train.py:60)\n")
#define LOADER                                                                                     \
	PY("    poll (python3.11/selectors.py:415)\n"                                              \
	   "    _next_data (site-packages/torch/utils/data/dataloader.py:1507)\n"                  \
	   "    __iter__ (site-packages/tqdm/std.py:1181)\n    main (/home/me/train.py:59)\n")
#define REDUCE(line)                                                                               \
	PY("    all_reduce (site-packages/torch/distributed/distributed_c10d.py:2810)\n"           \
	   "    reduce_loss (/home/me/train.py:" line ")\n")
#define NAMELESS(frames)                                                                           \
	"process 7 (python m.py)\nThread 8 (idle)\n    other (/me/m.py:1)\nThread 7 "              \
	"(active)\n" frames
#define BARRIER                                                                                    \
	PY("    barrier (site-packages/torch/distributed/distributed_c10d.py:2)\n"                 \
	   "    _exception_logger.<locals>.wrapper "                                               \
	   "(site-packages/torch/distributed/c10d_logger.py:8)\n"                                  \
	   "    main (/home/me/train.py:9)\n")
#define GDB(frames)                                                                                \
	"process 7 (./solver)\nThread 2 (Thread 0x7f1 (LWP 8) \"solver\"):\n"                      \
	"#0  0x00007fde98de3df2 in __libc_pause () at ../sysdeps/pause.c:29\n"                     \
	"#1  0x000055d526af6162 in worker () at solver.c:3\n"                                      \
	"Thread 1 (Thread 0x7f2 (LWP 7) \"solver\"):\n" frames
#define GDB_WAITS                                                                                  \
	GDB("#0  0x00007fde98ddf545 in poll () from /lib/libc.so.6\n"                              \
	    "#1  0x00007fde98de3e53 in opal_progress () from /lib/libopen-pal.so.40\n"             \
	    "#2  0x00007fde98de3d8a in PMPI_Allreduce () from /lib/libmpi.so.40\n"                 \
	    "#3  0x000055d526af6172 in solve (n=4) at solver.c:14\n#4  0x000055d526af619b in "     \
	    "main ()\n")
#define GDB_SLEEPS                                                                                 \
	GDB("#0  0x00007fde98ddf545 in __GI___clock_nanosleep (a=0) at ../sysdeps/x.c:48\n"        \
	    "#1  0x00007fde98de3d8a in __sleep (seconds=0) at ../sysdeps/sleep.c:55\n"             \
	    "#2  0x000055d526af6172 in read_mesh () at mesh.c:4\n#3  0x000055d526af619b in main "  \
	    "()\n")
#define EU_WAITS                                                                                   \
	"process 7 (./solver)\nPID 7 - process\nTID 7:\n#0  0x00007fde98ddf545 poll\n"             \
	"#1  0x00007fde98de3d8a PMPI_Barrier\n#2  0x000055d526af6172 main\n"                       \
	"TID 8:\n#0  0x000055d526af6172 worker\n"
#define EU_COMPUTES                                                                                \
	"process 7 (./solver)\nPID 7 - process\nTID 7:\n#0  0x000055d526af6190 smooth\n"           \
	"#1  0x000055d526af6172 main\n"

#define GDB_PYTHON(frames)                                                                         \
	"process 7 (python train.py)\npip install py-spy\n"                                        \
	"Thread 2 (Thread 0x7f1 (LWP 8) \"python\"):\n"                                            \
	"#0  0x00007fde98de3df2 in worker () from /lib/libx.so\n"                                  \
	"Thread 1 (Thread 0x7f2 (LWP 7) \"python\"):\n" frames                                     \
	"#8  0x000000000053acbc in PyObject_Vectorcall ()\n#9  0x0000000000647d97 in ?? ()\n"      \
	"#10 0x00007f8d24a8524a in __libc_start_call_main (argc=2) at ../sysdeps/x.h:58\n"         \
	"#11 0x0000000000627bd1 in _start ()\n"

static void rows(void **state)
{
	static const struct {
		const char *ranks[5]; /* their stacks, without "rank N, " */
		int culprit;
		const char *text;
	} list[] = {
		{{BACKWARD, LOAD, BACKWARD, BACKWARD},
		 1,
		 "3 ranks wait in Tensor.backward (train.py:63); rank 1 on n1 is in load_shard "
		 "(data.py:58)"},
		{{LOAD, BACKWARD},
		 0,
		 "rank 1 on n1 waits in Tensor.backward (train.py:63); rank 0 on n0 is in "
		 "load_shard "
		 "(data.py:58)"},
		{{BACKWARD, BACKWARD, LOADER},
		 2,
		 "2 ranks wait in Tensor.backward (train.py:63); rank 2 on n2 is in _next_data "
		 "(train.py:59)"},
		/* a skipped operation: the majority is right; two ranks have none */
		{{REDUCE("9"), REDUCE("9"), REDUCE("12"), REDUCE("9")},
		 2,
		 "3 ranks wait in all_reduce (train.py:9); rank 2 on n2 waits in all_reduce "
		 "(train.py:12)"},
		{{REDUCE("9"), REDUCE("12")},
		 -1,
		 "rank 1 on n1 waits in all_reduce (train.py:12); rank 0 on n0 waits in all_reduce "
		 "(train.py:9)"},
		{{BACKWARD, BACKWARD, "no process\n", BACKWARD},
		 2,
		 "3 ranks wait in Tensor.backward (train.py:63); rank 2 on n2 has ended"},
		/* rank 0 saves a checkpoint, the others are through */
		{{LOAD, "no process\n", "no process\n"},
		 0,
		 "2 ranks have ended; rank 0 on n0 is in load_shard (data.py:58)"},
		{{BACKWARD, BACKWARD}, -1, "2 ranks wait in _engine_run_backward (graph.py:841)"},
		{{GDB_WAITS, GDB_SLEEPS, GDB_WAITS},
		 1,
		 "2 ranks wait in PMPI_Allreduce (solver.c:14); rank 1 on n1 is in read_mesh "
		 "(mesh.c:4)"},
		{{EU_WAITS, EU_WAITS, EU_COMPUTES},
		 2,
		 "2 ranks wait in PMPI_Barrier, called from main; rank 2 on n2 is in smooth"},
		/* Python without py-spy */
		{{GDB_PYTHON("#0  0x00007fde98ddf545 in futex_wait () from /lib/libc.so.6\n"
			     "#1  0x00007f8d2066cac1 in c10d::Work::wait(int) () from "
			     "/lib/libtorch_cpu.so\n"),
		  GDB_PYTHON("#0  0x00007fde98ddf545 in __GI___clock_nanosleep (a=0) at "
			     "../sysdeps/x.c:48\n#1  0x00000000005d64b4 in ?? ()\n")},
		 1,
		 "rank 0 on n0 waits in c10d::Work::wait; rank 1 on n1 is in clock_nanosleep"},
		/* nothing is known of one rank: no rank is accused */
		{{BACKWARD, "process 7 (x)\nno stack: this user may not trace the process\n"},
		 -1,
		 ""},
		/* py-spy without threading, and a decorator's frame */
		{{NAMELESS("    main (/me/m.py:10)\n"), NAMELESS("    read (/me/m.py:5)\n"),
		  NAMELESS("    main (/me/m.py:10)\n")},
		 1,
		 "2 ranks are in main (m.py:10); rank 1 on n1 is in read (m.py:5)"},
		{{BARRIER, LOAD},
		 1,
		 "rank 0 on n0 waits in barrier (train.py:9); rank 1 on n1 is in load_shard "
		 "(data.py:58)"},
		{{NULL}, -1, ""},
		{{"process 7 (x)\n    x\n#\n#0\n#0  0xzz\nThread \n", BACKWARD}, -1, ""},
	};

	(void)state;
	for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
		struct stack_place places[5];
		char all[16384] = "", text[500];
		static const char *const nodes[] = {"n0", "n1", "n2", "n3"};
		size_t count = 0;

		for (int r = 0; list[i].ranks[r]; r++)
			sprintf(all + strlen(all), "rank %d, %s", r, list[i].ranks[r]);
		for (const char *at = all; *at; at = stack_end(at)) {
			places[count] = stack_place(at, stack_end(at));
			places[count].node = nodes[places[count].rank];
			count++;
		}
		int culprit = stacks_culprit(places, count, text, sizeof text);

		assert_string_equal(text, list[i].text);
		assert_int_equal(culprit, list[i].culprit);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(rows)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
