/* SPDX-License-Identifier: BSD-3-Clause */
/* What berth run and berth train do after their options are read: lib/run, and what it prints. */
#ifndef BERTH_BIN_RUN_RUN_PROGRAM_H
#define BERTH_BIN_RUN_RUN_PROGRAM_H

#include "run/run.h"
#include "run/run_options.h"

/* Run the program of options->request, or show it with --dry-run. Returns the exit code after all
 * messages are printed and --report is written. */
int run_program(const struct run_options *options);

/* run_task.c: refuse to be one of several ranks of mpirun, torchrun or another berth run, unless
 * --nested, --dry-run or --node-rank is given. Return 0, or -ERR_USAGE with the right line. */
int run_refuse_nested(const struct run_options *options, const struct env *env, struct error *err);
/* If srun has started this process as one of several tasks, act as that rank. On
 * success the program replaces this process. Return 1 if that failed or was a dry run, with the
 * exit code in *code; 0 if this is no such task. */
int run_as_task(const struct run_options *options, const struct env *env, int *code,
		struct error *err);

/* run_dry.c: print on stdout what would be started. Returns the exit code. */
int run_dry_run(const struct run_options *options, const struct run_setup *setup,
		struct error *err);

#endif
