/* SPDX-License-Identifier: BSD-3-Clause */
/* A job script for Slurm or PBS. Values of directives must be plain words and are otherwise
 * refused: no quoting in directives works alike in both schedulers and all their versions. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch/launcher.h"
#include "submit/submit.h"

#define NAME_MAX_PBS 230

struct script_writer {
	const struct submit *submit;
	FILE *stream;
	bool slurm;
};

static int check_plain_value(const char *option, const char *value, const char *more,
			     struct error *err)
{
	static const char plain[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-+@";
	const char *at = value;

	while (*at && (strchr(plain, *at) || strchr(more, *at)))
		at++;
	if (*value && *value != '-' && !*at)
		return 0;
	return error_set(err, ERR_USAGE,
			 "%s '%.100s': expected a word of letters, digits and %s%s (a shell or the "
			 "scheduler could misinterpret other characters)",
			 option, value, plain + 62, more);
}

static int check_submit(const struct submit *submit, struct error *err)
{
	const struct {
		const char *option, *value, *more;
	} values[] = {
		{"--queue", submit->queue, ","},  {"--account", submit->account, ":"},
		{"--name", submit->name, ""},	  {"--output", submit->output, "/%"},
		{"--after", submit->after, "[]"},
	};
	int rc = 0;

	for (size_t i = 0; !rc && i < sizeof values / sizeof *values; i++)
		if (values[i].value)
			rc = check_plain_value(values[i].option, values[i].value, values[i].more,
					       err);
	if (!rc && submit->name &&
	    (!isalpha((unsigned char)submit->name[0]) || strlen(submit->name) > NAME_MAX_PBS))
		rc = error_set(
			err, ERR_USAGE,
			"--name '%.100s': expected a letter first, and at most %d characters",
			submit->name, NAME_MAX_PBS);
	if (!rc && submit->kind == SUBMIT_SLURM && submit->cpus_per_node &&
	    submit->ranks_per_node && !submit->per_node &&
	    submit->cpus_per_node % submit->ranks_per_node)
		rc = error_set(err, ERR_USAGE,
			       "--cpus-per-node %d with --ranks-per-node %d: Slurm gives each task "
			       "the same number of cores; expected a multiple",
			       submit->cpus_per_node, submit->ranks_per_node);
	for (size_t i = 0; !rc && i < submit->directive_count; i++)
		if (submit->directives[i][0] != '-')
			rc = error_set(err, ERR_USAGE,
				       "the directive '%.100s': expected an option of sbatch or "
				       "qsub, such as --constraint=h100",
				       submit->directives[i]);
	return rc;
}

static void directive(const struct script_writer *w, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static void directive(const struct script_writer *w, const char *format, ...)
{
	va_list ap;

	fputs(w->slurm ? "#SBATCH " : "#PBS ", w->stream);
	va_start(ap, format);
	vfprintf(w->stream, format, ap);
	va_end(ap);
	fputc('\n', w->stream);
}

static void write_time(const struct script_writer *w, const char *option)
{
	int64_t time = w->submit->time_s;

	if (time)
		directive(w, "%s%02lld:%02lld:%02lld", option, (long long)time / 3600,
			  (long long)time / 60 % 60, (long long)time % 60);
}

/* These verbs start ranks themselves: within a rank each would become a job. */
static const char *berth_verb(const char *const *program)
{
	const char *slash = strrchr(program[0], '/');

	if (strcmp(slash ? slash + 1 : program[0], "berth") || !program[1] ||
	    (strcmp(program[1], "run") && strcmp(program[1], "train") &&
	     strcmp(program[1], "site-test")))
		return NULL;
	return program[1];
}

/* Also among the options of a line from @FILE, or of PROGRAM if that is berth run. */
static bool is_requeued(const struct submit *s)
{
	const char *verb = s->role || s->has_options ? NULL : berth_verb(s->program);
	const char *const *word = s->program + (verb ? 2 : 0);

	for (; (verb || s->has_options) && !s->requeue && *word; word++)
		if (!strcmp(*word, "--requeue"))
			return true;
		else if (!strcmp(*word, "--") || !strncmp(*word, "--role", 6))
			break;
	return s->requeue;
}

static void write_slurm(const struct script_writer *w)
{
	const struct submit *s = w->submit;

	directive(w, "--job-name=%s", s->name ? s->name : "berth");
	directive(w, "--nodes=%d", s->nodes);
	if (s->gpus_per_node > 0)
		directive(w, "--gpus-per-node=%d", s->gpus_per_node);
	/* Without GPUs berth derives the number of ranks from tasks. */
	if (s->ranks_per_node && !s->per_node)
		directive(w, "--ntasks-per-node=%d", s->ranks_per_node);
	else if (s->cpus_per_node)
		directive(w, "--ntasks-per-node=1");
	if (s->cpus_per_node) {
		int tasks = s->ranks_per_node && !s->per_node ? s->ranks_per_node : 1;

		directive(w, "--cpus-per-task=%d", s->cpus_per_node / tasks);
	}
	write_time(w, "--time=");
	if (s->queue)
		directive(w, "--partition=%s", s->queue);
	if (s->account)
		directive(w, "--account=%s", s->account);
	if (s->output)
		directive(w, "--output=%s", s->output);
	if (s->after)
		directive(w, "--dependency=afterok:%s", s->after);
	/* Keep the output of earlier starts; a site may have JobRequeue=0. */
	if (is_requeued(s)) {
		directive(w, "--requeue");
		directive(w, "--open-mode=append");
	}
	/* Otherwise a failed node also ends the script. berth names the node, and its report says
	 * what to do. */
	if (s->nodes > 1)
		directive(w, "--no-kill");
}

static void write_pbs(const struct script_writer *w)
{
	const struct submit *s = w->submit;
	char cpus[32] = "", gpus[32] = "", procs[32] = "";
	int gpus_per_node = s->gpus_per_node > 0 ? s->gpus_per_node : 0;
	int ranks = s->per_node ? 0 : s->ranks_per_node ? s->ranks_per_node : gpus_per_node;

	if (s->cpus_per_node)
		snprintf(cpus, sizeof cpus, ":ncpus=%d", s->cpus_per_node);
	if (gpus_per_node)
		snprintf(gpus, sizeof gpus, ":ngpus=%d", gpus_per_node);
	if (ranks)
		snprintf(procs, sizeof procs, ":mpiprocs=%d", ranks);
	directive(w, "-N %s", s->name ? s->name : "berth");
	directive(w, "-j oe");
	directive(w, "-l select=%d%s%s%s", s->nodes, cpus, gpus, procs);
	if (s->nodes > 1) /* otherwise two chunks may be on one host */
		directive(w, "-l place=scatter");
	write_time(w, "-l walltime=");
	if (s->queue)
		directive(w, "-q %s", s->queue);
	if (s->account)
		directive(w, "-A %s", s->account);
	if (s->output)
		directive(w, "-o %s", s->output);
	if (s->after)
		directive(w, "-W depend=afterok:%s", s->after);
}

/* Write berth run OPTIONS -- PROGRAM ARGUMENTS, quoted for a shell. */
static int write_run(const struct script_writer *w, struct error *err)
{
	const struct submit *s = w->submit;
	const char *verb = s->role || s->has_options ? NULL : berth_verb(s->program);
	char ranks[24];
	const char *begin[16];
	struct launcher_command values = {0};
	char *line;
	size_t n = 0;

	/* A path to berth selects that one. */
	begin[n++] = verb && strchr(s->program[0], '/') ? s->program[0] : s->berth;
	begin[n++] = verb ? verb : "run";
	if (s->per_node)
		begin[n++] = "--per-node";
	if (s->ranks_per_node && !s->per_node) {
		snprintf(ranks, sizeof ranks, "%d", s->ranks_per_node);
		begin[n++] = "--ranks-per-node";
		begin[n++] = ranks;
	}
	if (s->warn_before) {
		begin[n++] = "--warn-before";
		begin[n++] = s->warn_before;
	}
	if (s->requeue)
		begin[n++] = "--requeue";
	if (s->log_dir) {
		begin[n++] = "--log-dir";
		begin[n++] = s->log_dir;
	}
	if (s->ray)
		begin[n++] = "--ray";
	if (s->role) {
		begin[n++] = "--role";
		begin[n++] = s->role;
	} else if (!verb && !s->has_options) {
		begin[n++] = "--";
	}
	begin[n] = NULL;
	values.argv = launcher_argv(begin, NULL, s->program + (verb ? 2 : 0));
	line = values.argv ? launcher_command_line(values.argv) : NULL;
	launcher_command_free(&values);
	if (!line)
		return error_memory(err, "the script");
	fprintf(w->stream, "%s\n", line);
	free(line);
	return 0;
}

int submit_script(const struct submit *submit, char **out, struct error *err)
{
	char *text = NULL;
	size_t size = 0;
	struct script_writer w = {submit, NULL, submit->kind == SUBMIT_SLURM};
	int rc = check_submit(submit, err);

	if (rc)
		return rc;
	w.stream = open_memstream(&text, &size);
	if (!w.stream)
		return error_memory(err, "the script");
	fputs("#!/bin/bash\n# Written by berth submit " BERTH_VERSION ".\n", w.stream);
	if (w.slurm)
		write_slurm(&w);
	else
		write_pbs(&w);
	for (size_t i = 0; i < submit->directive_count; i++)
		directive(&w, "%s", submit->directives[i]);
	fputc('\n', w.stream);
	/* PBS sends SIGTERM (qdel, walltime) to the script's shell, too: it must wait for berth
	 * then. */
	if (!w.slurm)
		fputs("cd \"$PBS_O_WORKDIR\" || exit\ntrap : TERM\n", w.stream);
	for (size_t i = 0; i < submit->line_count; i++)
		fprintf(w.stream, "%s\n", submit->lines[i]);
	rc = write_run(&w, err);
	if (fclose(w.stream) && !rc)
		rc = error_memory(err, "the script");
	if (rc)
		free(text);
	else
		*out = text;
	return rc;
}
