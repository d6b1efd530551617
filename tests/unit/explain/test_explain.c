/* SPDX-License-Identifier: BSD-3-Clause */
/* Known failures: each record is met by its own lines, and healthy logs meet none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "explain/explain.h"

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
	"WARNING: flash_attn is not used (ModuleNotFoundError: No module named 'flash_attn')",
	"UserWarning: xFormers is not available: No module named 'xformers'",
	"INFO 11-30 09:12:01 [config.py:1604] Using max model len 4096",
	"INFO 11-30 09:12:07 [gpu_worker.py:276] Available KV cache memory: 61.30 GiB",
	"(raylet) The node with node id: 8f3a was added",
	"2026-11-30 09:12:01,200 INFO worker.py:1879 -- Connected to Ray cluster.",
	"GPU memory: 12.1 GiB of 79.3 GiB, no ECC errors",
	"libstdc++.so.6: version `GLIBCXX_3.4.30' found",
	"Loading `NVIDIA driver 550.54` ... done",
	"compiled with GLIBC 2.34",
	"Missing keys: [], unexpected keys: []",
	"<All keys matched successfully>",
	"Some weights of Bert were not initialized from the checkpoint and are newly initialized",
	"wandb: Tracking run with wandb version 0.19.1",
	"wandb: WARNING Serializing object of type Tensor that is 120 KB",
	"offline mode: using files of the cache",
	"Retrying in 1s [Retry 1/5].",
	"quota: 412 GB of 1000 GB used",
	"[W1130 ProcessGroupNCCL.cpp:4115] Guessing device ID based on global rank.",
	"NCCL INFO Using network AWS Libfabric",
	"NCCL INFO comm 0x55 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0",
	"NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 8 cudaDev 0 - Init COMPLETE",
	"I0000 00:00:1796 cuda_executor.cc:1015] successful NUMA node read from SysFS",
	"OpenBLAS threads: 8",
	"using spawn for the data loader's workers",
	"torch.compile: found C compiler gcc",
	"The following modules were reloaded with a version change: openmpi/4.1.4",
	"Lmod is automatically replacing \"gcc/12\" with \"gcc/13\".",
	"locked file data.h5 for reading",
	"slurmstepd: info: Setting TaskAffinity",
	"srun: job 4711 has been allocated resources",
	"rank 3: restored 214 tensors of step 12000",
};

/* Each record of known.txt has lines as programs print them, and is the first that they match. */
static void each_record(void **state)
{
	FILE *file = fopen(KNOWN_TXT, "r");
	const struct explain_row *rows, *row = NULL;
	size_t count = explain_rows(&rows), room = 0, records = 0, lines = 1;
	char *line = NULL;
	ssize_t size;

	assert_non_null(file);
	while ((size = getline(&line, &room, file)) > 0) {
		line[size - 1] = '\0';
		if (!strncmp(line, "match: ", 7) && (!records || lines)) {
			assert_true(records < count);
			row = &rows[records++];
			lines = 0;
			assert_string_equal(row->substrings[0], line + 7);
			assert_true(row->cause && row->fix && row->source);
		} else if (!strncmp(line, "seen: ", 6)) {
			if (explain_line(line + 6, row->in_child) != row)
				fail_msg("%s: not %s", line, row->substrings[0]);
			lines++;
		} else if (*line && *line != '#' && strncmp(line, "match: ", 7) &&
			   strncmp(line, "in: child", 9) && strncmp(line, "of: another rank", 16) &&
			   strncmp(line, "cause: ", 7) && strncmp(line, "fix: ", 5) &&
			   strncmp(line, "source: ", 8)) {
			fail_msg("known.txt: %s", line);
		}
	}
	assert_true(lines);
	assert_int_equal(records, count);
	free(line);
	fclose(file);
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
	const struct CMUnitTest tests[] = {cmocka_unit_test(each_record), cmocka_unit_test(healthy),
					   cmocka_unit_test(exceptions)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
