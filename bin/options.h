/* SPDX-License-Identifier: BSD-3-Clause */
/* Options that several verbs share: which ranks, and what the plan is told. */
#ifndef BERTH_BIN_OPTIONS_H
#define BERTH_BIN_OPTIONS_H

#include <argp.h>
#include <stdbool.h>

#include "alloc/alloc.h"
#include "plan/plan.h"

/* What the shared options fill in; zero-initialised by the verb. Strings point into argv. */
struct options {
	struct alloc_request alloc; /* --hosts, --hostfile */
	struct plan_request plan;   /* all others but attempt, port and the files */
};

/* An argp child: -n/--ranks, --ranks-per-node (--nproc-per-node), --gpus-per-rank,
 * --gpus-visible, --all-cores, --iface, --subnet, --hosts, --hostfile. A verb lists it as a child
 * and hands its struct options on:
 *	case ARGP_KEY_INIT: state->child_inputs[0] = &mine->options; */
extern const struct argp options_argp;

/* For verbs with an option --gpus-visible=all|own of their own: is it own? Refuses what is neither.
 */
bool options_gpus_visible(const struct argp_state *state, const char *text);

#endif
