#define rand	pan_rand
#define pthread_equal(a,b)	((a)==(b))
#if defined(HAS_CODE) && defined(VERBOSE)
	#ifdef BFS_PAR
		bfs_printf("Pr: %d Tr: %d\n", II, t->forw);
	#else
		cpu_printf("Pr: %d Tr: %d\n", II, t->forw);
	#endif
#endif
	switch (t->forw) {
	default: Uerror("bad forward move");
	case 0:	/* if without executable clauses */
		continue;
	case 1: /* generic 'goto' or 'skip' */
		IfNotBlocked
		_m = 3; goto P999;
	case 2: /* generic 'else' */
		IfNotBlocked
		if (trpt->o_pm&1) continue;
		_m = 3; goto P999;

		 /* CLAIM replies_are_heard */
	case 3: // STATE 1 - _spin_nvr.tmp:10 - [(!((!((ends[0].state==DO))||(ends[0].read==1))))] (6:0:0 - 1)
		
#if defined(VERI) && !defined(NP)
#if NCLAIMS>1
		{	static int reported1 = 0;
			if (verbose && !reported1)
			{	int nn = (int) ((Pclaim *)pptr(0))->_n;
				printf("depth %ld: Claim %s (%d), state %d (line %d)\n",
					depth, procname[spin_c_typ[nn]], nn, (int) ((Pclaim *)pptr(0))->_p, src_claim[ (int) ((Pclaim *)pptr(0))->_p ]);
				reported1 = 1;
				fflush(stdout);
		}	}
#else
		{	static int reported1 = 0;
			if (verbose && !reported1)
			{	printf("depth %d: Claim, state %d (line %d)\n",
					(int) depth, (int) ((Pclaim *)pptr(0))->_p, src_claim[ (int) ((Pclaim *)pptr(0))->_p ]);
				reported1 = 1;
				fflush(stdout);
		}	}
#endif
#endif
		reached[6][1] = 1;
		if (!( !(( !((now.ends[0].state==2))||(((int)now.ends[0].read)==1)))))
			continue;
		/* merge: assert(!(!((!((ends[0].state==DO))||(ends[0].read==1)))))(0, 2, 6) */
		reached[6][2] = 1;
		spin_assert( !( !(( !((now.ends[0].state==2))||(((int)now.ends[0].read)==1)))), " !( !(( !((ends[0].state==2))||(ends[0].read==1))))", II, tt, t);
		/* merge: .(goto)(0, 7, 6) */
		reached[6][7] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 4: // STATE 10 - _spin_nvr.tmp:15 - [-end-] (0:0:0 - 1)
		
#if defined(VERI) && !defined(NP)
#if NCLAIMS>1
		{	static int reported10 = 0;
			if (verbose && !reported10)
			{	int nn = (int) ((Pclaim *)pptr(0))->_n;
				printf("depth %ld: Claim %s (%d), state %d (line %d)\n",
					depth, procname[spin_c_typ[nn]], nn, (int) ((Pclaim *)pptr(0))->_p, src_claim[ (int) ((Pclaim *)pptr(0))->_p ]);
				reported10 = 1;
				fflush(stdout);
		}	}
#else
		{	static int reported10 = 0;
			if (verbose && !reported10)
			{	printf("depth %d: Claim, state %d (line %d)\n",
					(int) depth, (int) ((Pclaim *)pptr(0))->_p, src_claim[ (int) ((Pclaim *)pptr(0))->_p ]);
				reported10 = 1;
				fflush(stdout);
		}	}
#endif
#endif
		reached[6][10] = 1;
		if (!delproc(1, II)) continue;
		_m = 3; goto P999; /* 0 */

		 /* CLAIM both_close */
	case 5: // STATE 1 - _spin_nvr.tmp:4 - [(!(((ends[0].state==CD)&&(ends[1].state==CD))))] (0:0:0 - 1)
		
#if defined(VERI) && !defined(NP)
#if NCLAIMS>1
		{	static int reported1 = 0;
			if (verbose && !reported1)
			{	int nn = (int) ((Pclaim *)pptr(0))->_n;
				printf("depth %ld: Claim %s (%d), state %d (line %d)\n",
					depth, procname[spin_c_typ[nn]], nn, (int) ((Pclaim *)pptr(0))->_p, src_claim[ (int) ((Pclaim *)pptr(0))->_p ]);
				reported1 = 1;
				fflush(stdout);
		}	}
#else
		{	static int reported1 = 0;
			if (verbose && !reported1)
			{	printf("depth %d: Claim, state %d (line %d)\n",
					(int) depth, (int) ((Pclaim *)pptr(0))->_p, src_claim[ (int) ((Pclaim *)pptr(0))->_p ]);
				reported1 = 1;
				fflush(stdout);
		}	}
#endif
#endif
		reached[5][1] = 1;
		if (!( !(((now.ends[0].state==1)&&(now.ends[1].state==1)))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 6: // STATE 6 - _spin_nvr.tmp:6 - [-end-] (0:0:0 - 1)
		
#if defined(VERI) && !defined(NP)
#if NCLAIMS>1
		{	static int reported6 = 0;
			if (verbose && !reported6)
			{	int nn = (int) ((Pclaim *)pptr(0))->_n;
				printf("depth %ld: Claim %s (%d), state %d (line %d)\n",
					depth, procname[spin_c_typ[nn]], nn, (int) ((Pclaim *)pptr(0))->_p, src_claim[ (int) ((Pclaim *)pptr(0))->_p ]);
				reported6 = 1;
				fflush(stdout);
		}	}
#else
		{	static int reported6 = 0;
			if (verbose && !reported6)
			{	printf("depth %d: Claim, state %d (line %d)\n",
					(int) depth, (int) ((Pclaim *)pptr(0))->_p, src_claim[ (int) ((Pclaim *)pptr(0))->_p ]);
				reported6 = 1;
				fflush(stdout);
		}	}
#endif
#endif
		reached[5][6] = 1;
		if (!delproc(1, II)) continue;
		_m = 3; goto P999; /* 0 */

		 /* PROC :init: */
	case 7: // STATE 1 - dialog.pml:268 - [ends[0].state = SO] (0:5:4 - 1)
		IfNotBlocked
		reached[4][1] = 1;
		(trpt+1)->bup.ovals = grab_ints(4);
		(trpt+1)->bup.ovals[0] = now.ends[0].state;
		now.ends[0].state = 6;
#ifdef VAR_RANGES
		logval("ends[0].state", now.ends[0].state);
#endif
		;
		/* merge: ends[1].state = ABSENT(5, 2, 5) */
		reached[4][2] = 1;
		(trpt+1)->bup.ovals[1] = now.ends[1].state;
		now.ends[1].state = 7;
#ifdef VAR_RANGES
		logval("ends[1].state", now.ends[1].state);
#endif
		;
		/* merge: ends[0].end_at = 15(5, 3, 5) */
		reached[4][3] = 1;
		(trpt+1)->bup.ovals[2] = ((int)now.ends[0].end_at);
		now.ends[0].end_at = 15;
#ifdef VAR_RANGES
		logval("ends[0].end_at", ((int)now.ends[0].end_at));
#endif
		;
		/* merge: ends[1].end_at = 15(5, 4, 5) */
		reached[4][4] = 1;
		(trpt+1)->bup.ovals[3] = ((int)now.ends[1].end_at);
		now.ends[1].end_at = 15;
#ifdef VAR_RANGES
		logval("ends[1].end_at", ((int)now.ends[1].end_at));
#endif
		;
		_m = 3; goto P999; /* 3 */
	case 8: // STATE 5 - dialog.pml:270 - [(run Receive(0))] (0:0:0 - 1)
		IfNotBlocked
		reached[4][5] = 1;
		if (!(addproc(II, 1, 0, 0)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 9: // STATE 6 - dialog.pml:270 - [(run Receive(1))] (0:0:0 - 1)
		IfNotBlocked
		reached[4][6] = 1;
		if (!(addproc(II, 1, 0, 1)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 10: // STATE 7 - dialog.pml:271 - [(run Transmit(0))] (0:0:0 - 1)
		IfNotBlocked
		reached[4][7] = 1;
		if (!(addproc(II, 1, 1, 0)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 11: // STATE 8 - dialog.pml:271 - [(run Transmit(1))] (0:0:0 - 1)
		IfNotBlocked
		reached[4][8] = 1;
		if (!(addproc(II, 1, 1, 1)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 12: // STATE 9 - dialog.pml:272 - [(run App(0))] (0:0:0 - 1)
		IfNotBlocked
		reached[4][9] = 1;
		if (!(addproc(II, 1, 2, 0)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 13: // STATE 10 - dialog.pml:272 - [(run App(1))] (0:0:0 - 1)
		IfNotBlocked
		reached[4][10] = 1;
		if (!(addproc(II, 1, 2, 1)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 14: // STATE 11 - dialog.pml:273 - [(run Network())] (0:0:0 - 1)
		IfNotBlocked
		reached[4][11] = 1;
		if (!(addproc(II, 1, 3, 0)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 15: // STATE 13 - dialog.pml:275 - [-end-] (0:0:0 - 1)
		IfNotBlocked
		reached[4][13] = 1;
		if (!delproc(1, II)) continue;
		_m = 3; goto P999; /* 0 */

		 /* PROC Network */
	case 16: // STATE 1 - dialog.pml:240 - [((losses>0))] (5:0:1 - 1)
		IfNotBlocked
		reached[3][1] = 1;
		if (!((((int)now.losses)>0)))
			continue;
		/* merge: losses = (losses-1)(0, 2, 5) */
		reached[3][2] = 1;
		(trpt+1)->bup.oval = ((int)now.losses);
		now.losses = (((int)now.losses)-1);
#ifdef VAR_RANGES
		logval("losses", ((int)now.losses));
#endif
		;
		_m = 3; goto P999; /* 1 */
	case 17: // STATE 3 - dialog.pml:241 - [to = 0] (0:0:1 - 1)
		IfNotBlocked
		reached[3][3] = 1;
		(trpt+1)->bup.oval = ((int)((P3 *)_this)->to);
		((P3 *)_this)->to = 0;
#ifdef VAR_RANGES
		logval("Network:to", ((int)((P3 *)_this)->to));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 18: // STATE 4 - dialog.pml:241 - [to = 1] (0:0:1 - 1)
		IfNotBlocked
		reached[3][4] = 1;
		(trpt+1)->bup.oval = ((int)((P3 *)_this)->to);
		((P3 *)_this)->to = 1;
#ifdef VAR_RANGES
		logval("Network:to", ((int)((P3 *)_this)->to));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 19: // STATE 7 - dialog.pml:241 - [n = 0] (0:51:8 - 1)
		IfNotBlocked
		reached[3][7] = 1;
		(trpt+1)->bup.ovals = grab_ints(8);
		(trpt+1)->bup.ovals[0] = ((int)((P3 *)_this)->n);
		((P3 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Network:n", ((int)((P3 *)_this)->n));
#endif
		;
		/* merge: .(goto)(51, 10, 51) */
		reached[3][10] = 1;
		;
		/* merge: way[to].slot[n].is_there = 0(51, 11, 51) */
		reached[3][11] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_there);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_there = 0;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[Network:n].is_there", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_there));
#endif
		;
		/* merge: way[to].slot[n].is_ack = 0(51, 12, 51) */
		reached[3][12] = 1;
		(trpt+1)->bup.ovals[2] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_ack);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_ack = 0;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[Network:n].is_ack", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_ack));
#endif
		;
		/* merge: way[to].slot[n].is_end = 0(51, 13, 51) */
		reached[3][13] = 1;
		(trpt+1)->bup.ovals[3] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_end);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_end = 0;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[Network:n].is_end", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_end));
#endif
		;
		/* merge: way[to].slot[n].sequence = 0(51, 14, 51) */
		reached[3][14] = 1;
		(trpt+1)->bup.ovals[4] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].sequence);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].sequence = 0;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[Network:n].sequence", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].sequence));
#endif
		;
		/* merge: way[to].slot[n].acknowledged = 0(51, 15, 51) */
		reached[3][15] = 1;
		(trpt+1)->bup.ovals[5] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].acknowledged);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].acknowledged = 0;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[Network:n].acknowledged", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].acknowledged));
#endif
		;
		/* merge: n = 0(51, 16, 51) */
		reached[3][16] = 1;
		(trpt+1)->bup.ovals[6] = ((int)((P3 *)_this)->n);
		((P3 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Network:n", ((int)((P3 *)_this)->n));
#endif
		;
		/* merge: to = 0(51, 17, 51) */
		reached[3][17] = 1;
		(trpt+1)->bup.ovals[7] = ((int)((P3 *)_this)->to);
		((P3 *)_this)->to = 0;
#ifdef VAR_RANGES
		logval("Network:to", ((int)((P3 *)_this)->to));
#endif
		;
		/* merge: .(goto)(0, 52, 51) */
		reached[3][52] = 1;
		;
		_m = 3; goto P999; /* 9 */
	case 20: // STATE 8 - dialog.pml:241 - [n = 1] (0:51:8 - 1)
		IfNotBlocked
		reached[3][8] = 1;
		(trpt+1)->bup.ovals = grab_ints(8);
		(trpt+1)->bup.ovals[0] = ((int)((P3 *)_this)->n);
		((P3 *)_this)->n = 1;
#ifdef VAR_RANGES
		logval("Network:n", ((int)((P3 *)_this)->n));
#endif
		;
		/* merge: .(goto)(51, 10, 51) */
		reached[3][10] = 1;
		;
		/* merge: way[to].slot[n].is_there = 0(51, 11, 51) */
		reached[3][11] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_there);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_there = 0;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[Network:n].is_there", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_there));
#endif
		;
		/* merge: way[to].slot[n].is_ack = 0(51, 12, 51) */
		reached[3][12] = 1;
		(trpt+1)->bup.ovals[2] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_ack);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_ack = 0;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[Network:n].is_ack", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_ack));
#endif
		;
		/* merge: way[to].slot[n].is_end = 0(51, 13, 51) */
		reached[3][13] = 1;
		(trpt+1)->bup.ovals[3] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_end);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_end = 0;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[Network:n].is_end", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_end));
#endif
		;
		/* merge: way[to].slot[n].sequence = 0(51, 14, 51) */
		reached[3][14] = 1;
		(trpt+1)->bup.ovals[4] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].sequence);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].sequence = 0;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[Network:n].sequence", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].sequence));
#endif
		;
		/* merge: way[to].slot[n].acknowledged = 0(51, 15, 51) */
		reached[3][15] = 1;
		(trpt+1)->bup.ovals[5] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].acknowledged);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].acknowledged = 0;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[Network:n].acknowledged", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].acknowledged));
#endif
		;
		/* merge: n = 0(51, 16, 51) */
		reached[3][16] = 1;
		(trpt+1)->bup.ovals[6] = ((int)((P3 *)_this)->n);
		((P3 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Network:n", ((int)((P3 *)_this)->n));
#endif
		;
		/* merge: to = 0(51, 17, 51) */
		reached[3][17] = 1;
		(trpt+1)->bup.ovals[7] = ((int)((P3 *)_this)->to);
		((P3 *)_this)->to = 0;
#ifdef VAR_RANGES
		logval("Network:to", ((int)((P3 *)_this)->to));
#endif
		;
		/* merge: .(goto)(0, 52, 51) */
		reached[3][52] = 1;
		;
		_m = 3; goto P999; /* 9 */
	case 21: // STATE 11 - dialog.pml:242 - [way[to].slot[n].is_there = 0] (0:51:7 - 3)
		IfNotBlocked
		reached[3][11] = 1;
		(trpt+1)->bup.ovals = grab_ints(7);
		(trpt+1)->bup.ovals[0] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_there);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_there = 0;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[Network:n].is_there", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_there));
#endif
		;
		/* merge: way[to].slot[n].is_ack = 0(51, 12, 51) */
		reached[3][12] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_ack);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_ack = 0;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[Network:n].is_ack", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_ack));
#endif
		;
		/* merge: way[to].slot[n].is_end = 0(51, 13, 51) */
		reached[3][13] = 1;
		(trpt+1)->bup.ovals[2] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_end);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_end = 0;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[Network:n].is_end", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_end));
#endif
		;
		/* merge: way[to].slot[n].sequence = 0(51, 14, 51) */
		reached[3][14] = 1;
		(trpt+1)->bup.ovals[3] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].sequence);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].sequence = 0;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[Network:n].sequence", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].sequence));
#endif
		;
		/* merge: way[to].slot[n].acknowledged = 0(51, 15, 51) */
		reached[3][15] = 1;
		(trpt+1)->bup.ovals[4] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].acknowledged);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].acknowledged = 0;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[Network:n].acknowledged", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].acknowledged));
#endif
		;
		/* merge: n = 0(51, 16, 51) */
		reached[3][16] = 1;
		(trpt+1)->bup.ovals[5] = ((int)((P3 *)_this)->n);
		((P3 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Network:n", ((int)((P3 *)_this)->n));
#endif
		;
		/* merge: to = 0(51, 17, 51) */
		reached[3][17] = 1;
		(trpt+1)->bup.ovals[6] = ((int)((P3 *)_this)->to);
		((P3 *)_this)->to = 0;
#ifdef VAR_RANGES
		logval("Network:to", ((int)((P3 *)_this)->to));
#endif
		;
		/* merge: .(goto)(0, 52, 51) */
		reached[3][52] = 1;
		;
		_m = 3; goto P999; /* 7 */
	case 22: // STATE 19 - dialog.pml:248 - [((copies>0))] (23:0:1 - 1)
		IfNotBlocked
		reached[3][19] = 1;
		if (!((((int)now.copies)>0)))
			continue;
		/* merge: copies = (copies-1)(0, 20, 23) */
		reached[3][20] = 1;
		(trpt+1)->bup.oval = ((int)now.copies);
		now.copies = (((int)now.copies)-1);
#ifdef VAR_RANGES
		logval("copies", ((int)now.copies));
#endif
		;
		_m = 3; goto P999; /* 1 */
	case 23: // STATE 21 - dialog.pml:249 - [to = 0] (0:0:1 - 1)
		IfNotBlocked
		reached[3][21] = 1;
		(trpt+1)->bup.oval = ((int)((P3 *)_this)->to);
		((P3 *)_this)->to = 0;
#ifdef VAR_RANGES
		logval("Network:to", ((int)((P3 *)_this)->to));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 24: // STATE 22 - dialog.pml:249 - [to = 1] (0:0:1 - 1)
		IfNotBlocked
		reached[3][22] = 1;
		(trpt+1)->bup.oval = ((int)((P3 *)_this)->to);
		((P3 *)_this)->to = 1;
#ifdef VAR_RANGES
		logval("Network:to", ((int)((P3 *)_this)->to));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 25: // STATE 25 - dialog.pml:249 - [n = 0] (0:0:1 - 1)
		IfNotBlocked
		reached[3][25] = 1;
		(trpt+1)->bup.oval = ((int)((P3 *)_this)->n);
		((P3 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Network:n", ((int)((P3 *)_this)->n));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 26: // STATE 26 - dialog.pml:249 - [n = 1] (0:0:1 - 1)
		IfNotBlocked
		reached[3][26] = 1;
		(trpt+1)->bup.oval = ((int)((P3 *)_this)->n);
		((P3 *)_this)->n = 1;
#ifdef VAR_RANGES
		logval("Network:n", ((int)((P3 *)_this)->n));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 27: // STATE 29 - dialog.pml:251 - [((way[to].slot[n].is_there&&!(way[to].slot[(1-n)].is_there)))] (51:0:7 - 1)
		IfNotBlocked
		reached[3][29] = 1;
		if (!((((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_there)&& !(((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index((1-((int)((P3 *)_this)->n)), 2) ].is_there)))))
			continue;
		/* merge: way[to].slot[(1-n)].is_there = 1(51, 30, 51) */
		reached[3][30] = 1;
		(trpt+1)->bup.ovals = grab_ints(7);
		(trpt+1)->bup.ovals[0] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index((1-((int)((P3 *)_this)->n)), 2) ].is_there);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index((1-((P3 *)_this)->n), 2) ].is_there = 1;
#ifdef VAR_RANGES
		logval("way[Network:to].slot[(1-Network:n)].is_there", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index((1-((int)((P3 *)_this)->n)), 2) ].is_there));
#endif
		;
		/* merge: way[to].slot[(1-n)].is_ack = way[to].slot[n].is_ack(51, 31, 51) */
		reached[3][31] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index((1-((int)((P3 *)_this)->n)), 2) ].is_ack);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index((1-((P3 *)_this)->n), 2) ].is_ack = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_ack);
#ifdef VAR_RANGES
		logval("way[Network:to].slot[(1-Network:n)].is_ack", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index((1-((int)((P3 *)_this)->n)), 2) ].is_ack));
#endif
		;
		/* merge: way[to].slot[(1-n)].is_end = way[to].slot[n].is_end(51, 32, 51) */
		reached[3][32] = 1;
		(trpt+1)->bup.ovals[2] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index((1-((int)((P3 *)_this)->n)), 2) ].is_end);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index((1-((P3 *)_this)->n), 2) ].is_end = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].is_end);
#ifdef VAR_RANGES
		logval("way[Network:to].slot[(1-Network:n)].is_end", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index((1-((int)((P3 *)_this)->n)), 2) ].is_end));
#endif
		;
		/* merge: way[to].slot[(1-n)].sequence = way[to].slot[n].sequence(51, 33, 51) */
		reached[3][33] = 1;
		(trpt+1)->bup.ovals[3] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index((1-((int)((P3 *)_this)->n)), 2) ].sequence);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index((1-((P3 *)_this)->n), 2) ].sequence = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].sequence);
#ifdef VAR_RANGES
		logval("way[Network:to].slot[(1-Network:n)].sequence", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index((1-((int)((P3 *)_this)->n)), 2) ].sequence));
#endif
		;
		/* merge: way[to].slot[(1-n)].acknowledged = way[to].slot[n].acknowledged(51, 34, 51) */
		reached[3][34] = 1;
		(trpt+1)->bup.ovals[4] = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index((1-((int)((P3 *)_this)->n)), 2) ].acknowledged);
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index((1-((P3 *)_this)->n), 2) ].acknowledged = ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index(((int)((P3 *)_this)->n), 2) ].acknowledged);
#ifdef VAR_RANGES
		logval("way[Network:to].slot[(1-Network:n)].acknowledged", ((int)now.way[ Index(((int)((P3 *)_this)->to), 2) ].slot[ Index((1-((int)((P3 *)_this)->n)), 2) ].acknowledged));
#endif
		;
		/* merge: .(goto)(51, 37, 51) */
		reached[3][37] = 1;
		;
		/* merge: n = 0(51, 38, 51) */
		reached[3][38] = 1;
		(trpt+1)->bup.ovals[5] = ((int)((P3 *)_this)->n);
		((P3 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Network:n", ((int)((P3 *)_this)->n));
#endif
		;
		/* merge: to = 0(51, 39, 51) */
		reached[3][39] = 1;
		(trpt+1)->bup.ovals[6] = ((int)((P3 *)_this)->to);
		((P3 *)_this)->to = 0;
#ifdef VAR_RANGES
		logval("Network:to", ((int)((P3 *)_this)->to));
#endif
		;
		/* merge: .(goto)(0, 52, 51) */
		reached[3][52] = 1;
		;
		_m = 3; goto P999; /* 9 */
	case 28: // STATE 38 - dialog.pml:259 - [n = 0] (0:51:2 - 3)
		IfNotBlocked
		reached[3][38] = 1;
		(trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((int)((P3 *)_this)->n);
		((P3 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Network:n", ((int)((P3 *)_this)->n));
#endif
		;
		/* merge: to = 0(51, 39, 51) */
		reached[3][39] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P3 *)_this)->to);
		((P3 *)_this)->to = 0;
#ifdef VAR_RANGES
		logval("Network:to", ((int)((P3 *)_this)->to));
#endif
		;
		/* merge: .(goto)(0, 52, 51) */
		reached[3][52] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 29: // STATE 41 - dialog.pml:261 - [((crashes>0))] (45:0:1 - 1)
		IfNotBlocked
		reached[3][41] = 1;
		if (!((((int)now.crashes)>0)))
			continue;
		/* merge: crashes = (crashes-1)(0, 42, 45) */
		reached[3][42] = 1;
		(trpt+1)->bup.oval = ((int)now.crashes);
		now.crashes = (((int)now.crashes)-1);
#ifdef VAR_RANGES
		logval("crashes", ((int)now.crashes));
#endif
		;
		_m = 3; goto P999; /* 1 */
	case 30: // STATE 43 - dialog.pml:261 - [ends[0].due = 0] (0:51:1 - 1)
		IfNotBlocked
		reached[3][43] = 1;
		(trpt+1)->bup.oval = ((int)now.ends[0].due);
		now.ends[0].due = 0;
#ifdef VAR_RANGES
		logval("ends[0].due", ((int)now.ends[0].due));
#endif
		;
		/* merge: .(goto)(51, 46, 51) */
		reached[3][46] = 1;
		;
		/* merge: .(goto)(0, 52, 51) */
		reached[3][52] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 31: // STATE 46 - dialog.pml:261 - [.(goto)] (0:51:0 - 2)
		IfNotBlocked
		reached[3][46] = 1;
		;
		/* merge: .(goto)(0, 52, 51) */
		reached[3][52] = 1;
		;
		_m = 3; goto P999; /* 1 */
	case 32: // STATE 44 - dialog.pml:261 - [ends[1].due = 0] (0:51:1 - 1)
		IfNotBlocked
		reached[3][44] = 1;
		(trpt+1)->bup.oval = ((int)now.ends[1].due);
		now.ends[1].due = 0;
#ifdef VAR_RANGES
		logval("ends[1].due", ((int)now.ends[1].due));
#endif
		;
		/* merge: .(goto)(51, 46, 51) */
		reached[3][46] = 1;
		;
		/* merge: .(goto)(0, 52, 51) */
		reached[3][52] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 33: // STATE 48 - dialog.pml:262 - [(((ends[0].state==CD)&&(ends[1].state==CD)))] (54:0:0 - 1)
		IfNotBlocked
		reached[3][48] = 1;
		if (!(((now.ends[0].state==1)&&(now.ends[1].state==1))))
			continue;
		/* merge: goto :b4(0, 49, 54) */
		reached[3][49] = 1;
		;
		_m = 3; goto P999; /* 1 */
	case 34: // STATE 54 - dialog.pml:264 - [-end-] (0:0:0 - 2)
		IfNotBlocked
		reached[3][54] = 1;
		if (!delproc(1, II)) continue;
		_m = 3; goto P999; /* 0 */

		 /* PROC App */
	case 35: // STATE 1 - dialog.pml:208 - [((((me==0)&&((ends[0].state==SO)||(ends[0].state==CO)))&&(ends[0].sent<2)))] (25:0:2 - 1)
		IfNotBlocked
		reached[2][1] = 1;
		if (!((((((int)((P2 *)_this)->me)==0)&&((now.ends[0].state==6)||(now.ends[0].state==4)))&&(((int)now.ends[0].sent)<2))))
			continue;
		/* merge: ends[0].sent = (ends[0].sent+1)(25, 2, 25) */
		reached[2][2] = 1;
		(trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((int)now.ends[0].sent);
		now.ends[0].sent = (((int)now.ends[0].sent)+1);
#ifdef VAR_RANGES
		logval("ends[0].sent", ((int)now.ends[0].sent));
#endif
		;
		/* merge: ends[0].state = CO(25, 3, 25) */
		reached[2][3] = 1;
		(trpt+1)->bup.ovals[1] = now.ends[0].state;
		now.ends[0].state = 4;
#ifdef VAR_RANGES
		logval("ends[0].state", now.ends[0].state);
#endif
		;
		/* merge: .(goto)(0, 26, 25) */
		reached[2][26] = 1;
		;
		_m = 3; goto P999; /* 3 */
	case 36: // STATE 5 - dialog.pml:213 - [(((((me==1)&&(ends[1].state==CO))&&(ends[1].read>0))&&(ends[1].sent<1)))] (25:0:1 - 1)
		IfNotBlocked
		reached[2][5] = 1;
		if (!(((((((int)((P2 *)_this)->me)==1)&&(now.ends[1].state==4))&&(((int)now.ends[1].read)>0))&&(((int)now.ends[1].sent)<1))))
			continue;
		/* merge: ends[1].sent = (ends[1].sent+1)(0, 6, 25) */
		reached[2][6] = 1;
		(trpt+1)->bup.oval = ((int)now.ends[1].sent);
		now.ends[1].sent = (((int)now.ends[1].sent)+1);
#ifdef VAR_RANGES
		logval("ends[1].sent", ((int)now.ends[1].sent));
#endif
		;
		/* merge: .(goto)(0, 26, 25) */
		reached[2][26] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 37: // STATE 8 - dialog.pml:216 - [((((ends[me].read<ends[me].stored)&&(ends[me].state!=CD))&&(ends[me].state!=DO)))] (25:0:1 - 1)
		IfNotBlocked
		reached[2][8] = 1;
		if (!((((((int)now.ends[ Index(((int)((P2 *)_this)->me), 2) ].read)<((int)now.ends[ Index(((int)((P2 *)_this)->me), 2) ].stored))&&(now.ends[ Index(((int)((P2 *)_this)->me), 2) ].state!=1))&&(now.ends[ Index(((int)((P2 *)_this)->me), 2) ].state!=2))))
			continue;
		/* merge: ends[me].read = (ends[me].read+1)(0, 9, 25) */
		reached[2][9] = 1;
		(trpt+1)->bup.oval = ((int)now.ends[ Index(((int)((P2 *)_this)->me), 2) ].read);
		now.ends[ Index(((P2 *)_this)->me, 2) ].read = (((int)now.ends[ Index(((int)((P2 *)_this)->me), 2) ].read)+1);
#ifdef VAR_RANGES
		logval("ends[App:me].read", ((int)now.ends[ Index(((int)((P2 *)_this)->me), 2) ].read));
#endif
		;
		/* merge: .(goto)(0, 26, 25) */
		reached[2][26] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 38: // STATE 11 - dialog.pml:219 - [(((((me==0)&&(ends[0].state==CO))&&(ends[0].sent==2))&&(ends[0].read==1)))] (25:0:3 - 1)
		IfNotBlocked
		reached[2][11] = 1;
		if (!(((((((int)((P2 *)_this)->me)==0)&&(now.ends[0].state==4))&&(((int)now.ends[0].sent)==2))&&(((int)now.ends[0].read)==1))))
			continue;
		/* merge: ends[0].end_at = ends[0].sent(25, 12, 25) */
		reached[2][12] = 1;
		(trpt+1)->bup.ovals = grab_ints(3);
		(trpt+1)->bup.ovals[0] = ((int)now.ends[0].end_at);
		now.ends[0].end_at = ((int)now.ends[0].sent);
#ifdef VAR_RANGES
		logval("ends[0].end_at", ((int)now.ends[0].end_at));
#endif
		;
		/* merge: ends[0].sent = (ends[0].sent+1)(25, 13, 25) */
		reached[2][13] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.ends[0].sent);
		now.ends[0].sent = (((int)now.ends[0].sent)+1);
#ifdef VAR_RANGES
		logval("ends[0].sent", ((int)now.ends[0].sent));
#endif
		;
		/* merge: ends[0].state = DO(25, 14, 25) */
		reached[2][14] = 1;
		(trpt+1)->bup.ovals[2] = now.ends[0].state;
		now.ends[0].state = 2;
#ifdef VAR_RANGES
		logval("ends[0].state", now.ends[0].state);
#endif
		;
		/* merge: .(goto)(0, 26, 25) */
		reached[2][26] = 1;
		;
		_m = 3; goto P999; /* 4 */
	case 39: // STATE 16 - dialog.pml:225 - [(((ends[me].state==DI)&&(ends[me].read==ends[me].stored)))] (25:0:3 - 1)
		IfNotBlocked
		reached[2][16] = 1;
		if (!(((now.ends[ Index(((int)((P2 *)_this)->me), 2) ].state==3)&&(((int)now.ends[ Index(((int)((P2 *)_this)->me), 2) ].read)==((int)now.ends[ Index(((int)((P2 *)_this)->me), 2) ].stored)))))
			continue;
		/* merge: assert(((me==0)||(ends[1].read==(2+1))))(25, 17, 25) */
		reached[2][17] = 1;
		spin_assert(((((int)((P2 *)_this)->me)==0)||(((int)now.ends[1].read)==(2+1))), "((me==0)||(ends[1].read==(2+1)))", II, tt, t);
		/* merge: ends[me].state = CD(25, 18, 25) */
		reached[2][18] = 1;
		(trpt+1)->bup.ovals = grab_ints(3);
		(trpt+1)->bup.ovals[0] = now.ends[ Index(((int)((P2 *)_this)->me), 2) ].state;
		now.ends[ Index(((P2 *)_this)->me, 2) ].state = 1;
#ifdef VAR_RANGES
		logval("ends[App:me].state", now.ends[ Index(((int)((P2 *)_this)->me), 2) ].state);
#endif
		;
		/* merge: ends[me].tombstone = 1(25, 19, 25) */
		reached[2][19] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.ends[ Index(((int)((P2 *)_this)->me), 2) ].tombstone);
		now.ends[ Index(((P2 *)_this)->me, 2) ].tombstone = 1;
#ifdef VAR_RANGES
		logval("ends[App:me].tombstone", ((int)now.ends[ Index(((int)((P2 *)_this)->me), 2) ].tombstone));
#endif
		;
		/* merge: ends[me].acked = ends[me].sent(25, 20, 25) */
		reached[2][20] = 1;
		(trpt+1)->bup.ovals[2] = ((int)now.ends[ Index(((int)((P2 *)_this)->me), 2) ].acked);
		now.ends[ Index(((P2 *)_this)->me, 2) ].acked = ((int)now.ends[ Index(((int)((P2 *)_this)->me), 2) ].sent);
#ifdef VAR_RANGES
		logval("ends[App:me].acked", ((int)now.ends[ Index(((int)((P2 *)_this)->me), 2) ].acked));
#endif
		;
		/* merge: .(goto)(0, 26, 25) */
		reached[2][26] = 1;
		;
		_m = 3; goto P999; /* 5 */
	case 40: // STATE 22 - dialog.pml:231 - [(((ends[0].state==CD)&&(ends[1].state==CD)))] (28:0:0 - 1)
		IfNotBlocked
		reached[2][22] = 1;
		if (!(((now.ends[0].state==1)&&(now.ends[1].state==1))))
			continue;
		/* merge: goto :b3(0, 23, 28) */
		reached[2][23] = 1;
		;
		_m = 3; goto P999; /* 1 */
	case 41: // STATE 28 - dialog.pml:233 - [-end-] (0:0:0 - 2)
		IfNotBlocked
		reached[2][28] = 1;
		if (!delproc(1, II)) continue;
		_m = 3; goto P999; /* 0 */

		 /* PROC Transmit */
	case 42: // STATE 1 - dialog.pml:190 - [(((ends[me].acked<ends[me].sent)&&(ends[me].state!=CD)))] (6:0:1 - 1)
		IfNotBlocked
		reached[1][1] = 1;
		if (!(((((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].acked)<((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].sent))&&(now.ends[ Index(((int)((P1 *)_this)->me), 2) ].state!=1))))
			continue;
		/* merge: number = ends[me].acked(0, 2, 6) */
		reached[1][2] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->number);
		((P1 *)_this)->number = ((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].acked);
#ifdef VAR_RANGES
		logval("Transmit:number", ((int)((P1 *)_this)->number));
#endif
		;
		/* merge: .(goto)(0, 7, 6) */
		reached[1][7] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 43: // STATE 3 - dialog.pml:193 - [(((number+1)<ends[me].sent))] (6:0:1 - 1)
		IfNotBlocked
		reached[1][3] = 1;
		if (!(((((int)((P1 *)_this)->number)+1)<((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].sent))))
			continue;
		/* merge: number = (number+1)(0, 4, 6) */
		reached[1][4] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->number);
		((P1 *)_this)->number = (((int)((P1 *)_this)->number)+1);
#ifdef VAR_RANGES
		logval("Transmit:number", ((int)((P1 *)_this)->number));
#endif
		;
		/* merge: .(goto)(0, 7, 6) */
		reached[1][7] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 44: // STATE 9 - dialog.pml:80 - [(!(way[(1-me)].slot[0].is_there))] (24:0:1 - 1)
		IfNotBlocked
		reached[1][9] = 1;
		if (!( !(((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[0].is_there))))
			continue;
		/* merge: n = 0(0, 10, 24) */
		reached[1][10] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->n);
		((P1 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Transmit:n", ((int)((P1 *)_this)->n));
#endif
		;
		/* merge: .(goto)(0, 16, 24) */
		reached[1][16] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 45: // STATE 11 - dialog.pml:81 - [((way[(1-me)].slot[0].is_there&&!(way[(1-me)].slot[1].is_there)))] (24:0:1 - 1)
		IfNotBlocked
		reached[1][11] = 1;
		if (!((((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[0].is_there)&& !(((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[1].is_there)))))
			continue;
		/* merge: n = 1(0, 12, 24) */
		reached[1][12] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->n);
		((P1 *)_this)->n = 1;
#ifdef VAR_RANGES
		logval("Transmit:n", ((int)((P1 *)_this)->n));
#endif
		;
		/* merge: .(goto)(0, 16, 24) */
		reached[1][16] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 46: // STATE 14 - dialog.pml:82 - [n = 15] (0:0:1 - 1)
		IfNotBlocked
		reached[1][14] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->n);
		((P1 *)_this)->n = 15;
#ifdef VAR_RANGES
		logval("Transmit:n", ((int)((P1 *)_this)->n));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 47: // STATE 17 - dialog.pml:85 - [((n!=15))] (56:0:8 - 1)
		IfNotBlocked
		reached[1][17] = 1;
		if (!((((int)((P1 *)_this)->n)!=15)))
			continue;
		/* merge: way[(1-me)].slot[n].is_there = 1(56, 18, 56) */
		reached[1][18] = 1;
		(trpt+1)->bup.ovals = grab_ints(8);
		(trpt+1)->bup.ovals[0] = ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].is_there);
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].is_there = 1;
#ifdef VAR_RANGES
		logval("way[(1-Transmit:me)].slot[Transmit:n].is_there", ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].is_there));
#endif
		;
		/* merge: way[(1-me)].slot[n].is_ack = 0(56, 19, 56) */
		reached[1][19] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].is_ack);
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].is_ack = 0;
#ifdef VAR_RANGES
		logval("way[(1-Transmit:me)].slot[Transmit:n].is_ack", ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].is_ack));
#endif
		;
		/* merge: way[(1-me)].slot[n].is_end = (number==ends[me].end_at)(56, 20, 56) */
		reached[1][20] = 1;
		(trpt+1)->bup.ovals[2] = ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].is_end);
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].is_end = (((int)((P1 *)_this)->number)==((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].end_at));
#ifdef VAR_RANGES
		logval("way[(1-Transmit:me)].slot[Transmit:n].is_end", ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].is_end));
#endif
		;
		/* merge: way[(1-me)].slot[n].sequence = number(56, 21, 56) */
		reached[1][21] = 1;
		(trpt+1)->bup.ovals[3] = ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].sequence);
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].sequence = ((int)((P1 *)_this)->number);
#ifdef VAR_RANGES
		logval("way[(1-Transmit:me)].slot[Transmit:n].sequence", ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].sequence));
#endif
		;
		/* merge: way[(1-me)].slot[n].acknowledged = ends[me].stored(56, 22, 56) */
		reached[1][22] = 1;
		(trpt+1)->bup.ovals[4] = ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].acknowledged);
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].acknowledged = ((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].stored);
#ifdef VAR_RANGES
		logval("way[(1-Transmit:me)].slot[Transmit:n].acknowledged", ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].acknowledged));
#endif
		;
		/* merge: .(goto)(56, 25, 56) */
		reached[1][25] = 1;
		;
		/* merge: n = 0(56, 26, 56) */
		reached[1][26] = 1;
		(trpt+1)->bup.ovals[5] = ((int)((P1 *)_this)->n);
		((P1 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Transmit:n", ((int)((P1 *)_this)->n));
#endif
		;
		/* merge: ends[me].due = 0(56, 28, 56) */
		reached[1][28] = 1;
		(trpt+1)->bup.ovals[6] = ((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].due);
		now.ends[ Index(((P1 *)_this)->me, 2) ].due = 0;
#ifdef VAR_RANGES
		logval("ends[Transmit:me].due", ((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].due));
#endif
		;
		/* merge: number = 0(56, 29, 56) */
		reached[1][29] = 1;
		(trpt+1)->bup.ovals[7] = ((int)((P1 *)_this)->number);
		((P1 *)_this)->number = 0;
#ifdef VAR_RANGES
		logval("Transmit:number", ((int)((P1 *)_this)->number));
#endif
		;
		/* merge: .(goto)(0, 57, 56) */
		reached[1][57] = 1;
		;
		_m = 3; goto P999; /* 10 */
	case 48: // STATE 26 - dialog.pml:93 - [n = 0] (0:56:3 - 3)
		IfNotBlocked
		reached[1][26] = 1;
		(trpt+1)->bup.ovals = grab_ints(3);
		(trpt+1)->bup.ovals[0] = ((int)((P1 *)_this)->n);
		((P1 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Transmit:n", ((int)((P1 *)_this)->n));
#endif
		;
		/* merge: ends[me].due = 0(56, 28, 56) */
		reached[1][28] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].due);
		now.ends[ Index(((P1 *)_this)->me, 2) ].due = 0;
#ifdef VAR_RANGES
		logval("ends[Transmit:me].due", ((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].due));
#endif
		;
		/* merge: number = 0(56, 29, 56) */
		reached[1][29] = 1;
		(trpt+1)->bup.ovals[2] = ((int)((P1 *)_this)->number);
		((P1 *)_this)->number = 0;
#ifdef VAR_RANGES
		logval("Transmit:number", ((int)((P1 *)_this)->number));
#endif
		;
		/* merge: .(goto)(0, 57, 56) */
		reached[1][57] = 1;
		;
		_m = 3; goto P999; /* 3 */
	case 49: // STATE 31 - dialog.pml:200 - [(ends[me].due)] (0:0:0 - 1)
		IfNotBlocked
		reached[1][31] = 1;
		if (!(((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].due)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 50: // STATE 32 - dialog.pml:80 - [(!(way[(1-me)].slot[0].is_there))] (47:0:1 - 1)
		IfNotBlocked
		reached[1][32] = 1;
		if (!( !(((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[0].is_there))))
			continue;
		/* merge: n = 0(0, 33, 47) */
		reached[1][33] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->n);
		((P1 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Transmit:n", ((int)((P1 *)_this)->n));
#endif
		;
		/* merge: .(goto)(0, 39, 47) */
		reached[1][39] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 51: // STATE 34 - dialog.pml:81 - [((way[(1-me)].slot[0].is_there&&!(way[(1-me)].slot[1].is_there)))] (47:0:1 - 1)
		IfNotBlocked
		reached[1][34] = 1;
		if (!((((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[0].is_there)&& !(((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[1].is_there)))))
			continue;
		/* merge: n = 1(0, 35, 47) */
		reached[1][35] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->n);
		((P1 *)_this)->n = 1;
#ifdef VAR_RANGES
		logval("Transmit:n", ((int)((P1 *)_this)->n));
#endif
		;
		/* merge: .(goto)(0, 39, 47) */
		reached[1][39] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 52: // STATE 37 - dialog.pml:82 - [n = 15] (0:0:1 - 1)
		IfNotBlocked
		reached[1][37] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->n);
		((P1 *)_this)->n = 15;
#ifdef VAR_RANGES
		logval("Transmit:n", ((int)((P1 *)_this)->n));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 53: // STATE 40 - dialog.pml:85 - [((n!=15))] (56:0:7 - 1)
		IfNotBlocked
		reached[1][40] = 1;
		if (!((((int)((P1 *)_this)->n)!=15)))
			continue;
		/* merge: way[(1-me)].slot[n].is_there = 1(56, 41, 56) */
		reached[1][41] = 1;
		(trpt+1)->bup.ovals = grab_ints(7);
		(trpt+1)->bup.ovals[0] = ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].is_there);
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].is_there = 1;
#ifdef VAR_RANGES
		logval("way[(1-Transmit:me)].slot[Transmit:n].is_there", ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].is_there));
#endif
		;
		/* merge: way[(1-me)].slot[n].is_ack = 1(56, 42, 56) */
		reached[1][42] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].is_ack);
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].is_ack = 1;
#ifdef VAR_RANGES
		logval("way[(1-Transmit:me)].slot[Transmit:n].is_ack", ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].is_ack));
#endif
		;
		/* merge: way[(1-me)].slot[n].is_end = 0(56, 43, 56) */
		reached[1][43] = 1;
		(trpt+1)->bup.ovals[2] = ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].is_end);
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].is_end = 0;
#ifdef VAR_RANGES
		logval("way[(1-Transmit:me)].slot[Transmit:n].is_end", ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].is_end));
#endif
		;
		/* merge: way[(1-me)].slot[n].sequence = 0(56, 44, 56) */
		reached[1][44] = 1;
		(trpt+1)->bup.ovals[3] = ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].sequence);
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].sequence = 0;
#ifdef VAR_RANGES
		logval("way[(1-Transmit:me)].slot[Transmit:n].sequence", ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].sequence));
#endif
		;
		/* merge: way[(1-me)].slot[n].acknowledged = ends[me].stored(56, 45, 56) */
		reached[1][45] = 1;
		(trpt+1)->bup.ovals[4] = ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].acknowledged);
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].acknowledged = ((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].stored);
#ifdef VAR_RANGES
		logval("way[(1-Transmit:me)].slot[Transmit:n].acknowledged", ((int)now.way[ Index((1-((int)((P1 *)_this)->me)), 2) ].slot[ Index(((int)((P1 *)_this)->n), 2) ].acknowledged));
#endif
		;
		/* merge: .(goto)(56, 48, 56) */
		reached[1][48] = 1;
		;
		/* merge: n = 0(56, 49, 56) */
		reached[1][49] = 1;
		(trpt+1)->bup.ovals[5] = ((int)((P1 *)_this)->n);
		((P1 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Transmit:n", ((int)((P1 *)_this)->n));
#endif
		;
		/* merge: ends[me].due = 0(56, 51, 56) */
		reached[1][51] = 1;
		(trpt+1)->bup.ovals[6] = ((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].due);
		now.ends[ Index(((P1 *)_this)->me, 2) ].due = 0;
#ifdef VAR_RANGES
		logval("ends[Transmit:me].due", ((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].due));
#endif
		;
		/* merge: .(goto)(0, 57, 56) */
		reached[1][57] = 1;
		;
		_m = 3; goto P999; /* 9 */
	case 54: // STATE 49 - dialog.pml:93 - [n = 0] (0:56:2 - 3)
		IfNotBlocked
		reached[1][49] = 1;
		(trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((int)((P1 *)_this)->n);
		((P1 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Transmit:n", ((int)((P1 *)_this)->n));
#endif
		;
		/* merge: ends[me].due = 0(56, 51, 56) */
		reached[1][51] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].due);
		now.ends[ Index(((P1 *)_this)->me, 2) ].due = 0;
#ifdef VAR_RANGES
		logval("ends[Transmit:me].due", ((int)now.ends[ Index(((int)((P1 *)_this)->me), 2) ].due));
#endif
		;
		/* merge: .(goto)(0, 57, 56) */
		reached[1][57] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 55: // STATE 53 - dialog.pml:201 - [(((ends[0].state==CD)&&(ends[1].state==CD)))] (59:0:0 - 1)
		IfNotBlocked
		reached[1][53] = 1;
		if (!(((now.ends[0].state==1)&&(now.ends[1].state==1))))
			continue;
		/* merge: goto :b1(0, 54, 59) */
		reached[1][54] = 1;
		;
		_m = 3; goto P999; /* 1 */
	case 56: // STATE 59 - dialog.pml:203 - [-end-] (0:0:0 - 2)
		IfNotBlocked
		reached[1][59] = 1;
		if (!delproc(1, II)) continue;
		_m = 3; goto P999; /* 0 */

		 /* PROC Receive */
	case 57: // STATE 1 - dialog.pml:160 - [((way[me].slot[0].is_there||way[me].slot[1].is_there))] (0:0:0 - 1)
		IfNotBlocked
		reached[0][1] = 1;
		if (!((((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[0].is_there)||((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[1].is_there))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 58: // STATE 2 - dialog.pml:162 - [(way[me].slot[0].is_there)] (29:0:10 - 1)
		IfNotBlocked
		reached[0][2] = 1;
		if (!(((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[0].is_there)))
			continue;
		/* merge: n = 0(29, 3, 29) */
		reached[0][3] = 1;
		(trpt+1)->bup.ovals = grab_ints(10);
		(trpt+1)->bup.ovals[0] = ((int)((P0 *)_this)->n);
		((P0 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Receive:n", ((int)((P0 *)_this)->n));
#endif
		;
		/* merge: .(goto)(29, 7, 29) */
		reached[0][7] = 1;
		;
		/* merge: f.is_ack = way[me].slot[n].is_ack(29, 8, 29) */
		reached[0][8] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P0 *)_this)->f.is_ack);
		((P0 *)_this)->f.is_ack = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_ack);
#ifdef VAR_RANGES
		logval("Receive:f.is_ack", ((int)((P0 *)_this)->f.is_ack));
#endif
		;
		/* merge: f.is_end = way[me].slot[n].is_end(29, 9, 29) */
		reached[0][9] = 1;
		(trpt+1)->bup.ovals[2] = ((int)((P0 *)_this)->f.is_end);
		((P0 *)_this)->f.is_end = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_end);
#ifdef VAR_RANGES
		logval("Receive:f.is_end", ((int)((P0 *)_this)->f.is_end));
#endif
		;
		/* merge: f.sequence = way[me].slot[n].sequence(29, 10, 29) */
		reached[0][10] = 1;
		(trpt+1)->bup.ovals[3] = ((int)((P0 *)_this)->f.sequence);
		((P0 *)_this)->f.sequence = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].sequence);
#ifdef VAR_RANGES
		logval("Receive:f.sequence", ((int)((P0 *)_this)->f.sequence));
#endif
		;
		/* merge: f.acknowledged = way[me].slot[n].acknowledged(29, 11, 29) */
		reached[0][11] = 1;
		(trpt+1)->bup.ovals[4] = ((int)((P0 *)_this)->f.acknowledged);
		((P0 *)_this)->f.acknowledged = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].acknowledged);
#ifdef VAR_RANGES
		logval("Receive:f.acknowledged", ((int)((P0 *)_this)->f.acknowledged));
#endif
		;
		/* merge: way[me].slot[n].is_there = 0(29, 12, 29) */
		reached[0][12] = 1;
		(trpt+1)->bup.ovals[5] = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_there);
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_there = 0;
#ifdef VAR_RANGES
		logval("way[Receive:me].slot[Receive:n].is_there", ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_there));
#endif
		;
		/* merge: way[me].slot[n].is_ack = 0(29, 13, 29) */
		reached[0][13] = 1;
		(trpt+1)->bup.ovals[6] = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_ack);
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_ack = 0;
#ifdef VAR_RANGES
		logval("way[Receive:me].slot[Receive:n].is_ack", ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_ack));
#endif
		;
		/* merge: way[me].slot[n].is_end = 0(29, 14, 29) */
		reached[0][14] = 1;
		(trpt+1)->bup.ovals[7] = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_end);
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_end = 0;
#ifdef VAR_RANGES
		logval("way[Receive:me].slot[Receive:n].is_end", ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_end));
#endif
		;
		/* merge: way[me].slot[n].sequence = 0(29, 15, 29) */
		reached[0][15] = 1;
		(trpt+1)->bup.ovals[8] = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].sequence);
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].sequence = 0;
#ifdef VAR_RANGES
		logval("way[Receive:me].slot[Receive:n].sequence", ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].sequence));
#endif
		;
		/* merge: way[me].slot[n].acknowledged = 0(29, 16, 29) */
		reached[0][16] = 1;
		(trpt+1)->bup.ovals[9] = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].acknowledged);
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].acknowledged = 0;
#ifdef VAR_RANGES
		logval("way[Receive:me].slot[Receive:n].acknowledged", ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].acknowledged));
#endif
		;
		_m = 3; goto P999; /* 11 */
	case 59: // STATE 4 - dialog.pml:163 - [(way[me].slot[1].is_there)] (29:0:10 - 1)
		IfNotBlocked
		reached[0][4] = 1;
		if (!(((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[1].is_there)))
			continue;
		/* merge: n = 1(29, 5, 29) */
		reached[0][5] = 1;
		(trpt+1)->bup.ovals = grab_ints(10);
		(trpt+1)->bup.ovals[0] = ((int)((P0 *)_this)->n);
		((P0 *)_this)->n = 1;
#ifdef VAR_RANGES
		logval("Receive:n", ((int)((P0 *)_this)->n));
#endif
		;
		/* merge: .(goto)(29, 7, 29) */
		reached[0][7] = 1;
		;
		/* merge: f.is_ack = way[me].slot[n].is_ack(29, 8, 29) */
		reached[0][8] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P0 *)_this)->f.is_ack);
		((P0 *)_this)->f.is_ack = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_ack);
#ifdef VAR_RANGES
		logval("Receive:f.is_ack", ((int)((P0 *)_this)->f.is_ack));
#endif
		;
		/* merge: f.is_end = way[me].slot[n].is_end(29, 9, 29) */
		reached[0][9] = 1;
		(trpt+1)->bup.ovals[2] = ((int)((P0 *)_this)->f.is_end);
		((P0 *)_this)->f.is_end = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_end);
#ifdef VAR_RANGES
		logval("Receive:f.is_end", ((int)((P0 *)_this)->f.is_end));
#endif
		;
		/* merge: f.sequence = way[me].slot[n].sequence(29, 10, 29) */
		reached[0][10] = 1;
		(trpt+1)->bup.ovals[3] = ((int)((P0 *)_this)->f.sequence);
		((P0 *)_this)->f.sequence = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].sequence);
#ifdef VAR_RANGES
		logval("Receive:f.sequence", ((int)((P0 *)_this)->f.sequence));
#endif
		;
		/* merge: f.acknowledged = way[me].slot[n].acknowledged(29, 11, 29) */
		reached[0][11] = 1;
		(trpt+1)->bup.ovals[4] = ((int)((P0 *)_this)->f.acknowledged);
		((P0 *)_this)->f.acknowledged = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].acknowledged);
#ifdef VAR_RANGES
		logval("Receive:f.acknowledged", ((int)((P0 *)_this)->f.acknowledged));
#endif
		;
		/* merge: way[me].slot[n].is_there = 0(29, 12, 29) */
		reached[0][12] = 1;
		(trpt+1)->bup.ovals[5] = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_there);
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_there = 0;
#ifdef VAR_RANGES
		logval("way[Receive:me].slot[Receive:n].is_there", ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_there));
#endif
		;
		/* merge: way[me].slot[n].is_ack = 0(29, 13, 29) */
		reached[0][13] = 1;
		(trpt+1)->bup.ovals[6] = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_ack);
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_ack = 0;
#ifdef VAR_RANGES
		logval("way[Receive:me].slot[Receive:n].is_ack", ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_ack));
#endif
		;
		/* merge: way[me].slot[n].is_end = 0(29, 14, 29) */
		reached[0][14] = 1;
		(trpt+1)->bup.ovals[7] = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_end);
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_end = 0;
#ifdef VAR_RANGES
		logval("way[Receive:me].slot[Receive:n].is_end", ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_end));
#endif
		;
		/* merge: way[me].slot[n].sequence = 0(29, 15, 29) */
		reached[0][15] = 1;
		(trpt+1)->bup.ovals[8] = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].sequence);
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].sequence = 0;
#ifdef VAR_RANGES
		logval("way[Receive:me].slot[Receive:n].sequence", ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].sequence));
#endif
		;
		/* merge: way[me].slot[n].acknowledged = 0(29, 16, 29) */
		reached[0][16] = 1;
		(trpt+1)->bup.ovals[9] = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].acknowledged);
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].acknowledged = 0;
#ifdef VAR_RANGES
		logval("way[Receive:me].slot[Receive:n].acknowledged", ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].acknowledged));
#endif
		;
		_m = 3; goto P999; /* 11 */
	case 60: // STATE 8 - dialog.pml:165 - [f.is_ack = way[me].slot[n].is_ack] (0:29:9 - 3)
		IfNotBlocked
		reached[0][8] = 1;
		(trpt+1)->bup.ovals = grab_ints(9);
		(trpt+1)->bup.ovals[0] = ((int)((P0 *)_this)->f.is_ack);
		((P0 *)_this)->f.is_ack = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_ack);
#ifdef VAR_RANGES
		logval("Receive:f.is_ack", ((int)((P0 *)_this)->f.is_ack));
#endif
		;
		/* merge: f.is_end = way[me].slot[n].is_end(29, 9, 29) */
		reached[0][9] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P0 *)_this)->f.is_end);
		((P0 *)_this)->f.is_end = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_end);
#ifdef VAR_RANGES
		logval("Receive:f.is_end", ((int)((P0 *)_this)->f.is_end));
#endif
		;
		/* merge: f.sequence = way[me].slot[n].sequence(29, 10, 29) */
		reached[0][10] = 1;
		(trpt+1)->bup.ovals[2] = ((int)((P0 *)_this)->f.sequence);
		((P0 *)_this)->f.sequence = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].sequence);
#ifdef VAR_RANGES
		logval("Receive:f.sequence", ((int)((P0 *)_this)->f.sequence));
#endif
		;
		/* merge: f.acknowledged = way[me].slot[n].acknowledged(29, 11, 29) */
		reached[0][11] = 1;
		(trpt+1)->bup.ovals[3] = ((int)((P0 *)_this)->f.acknowledged);
		((P0 *)_this)->f.acknowledged = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].acknowledged);
#ifdef VAR_RANGES
		logval("Receive:f.acknowledged", ((int)((P0 *)_this)->f.acknowledged));
#endif
		;
		/* merge: way[me].slot[n].is_there = 0(29, 12, 29) */
		reached[0][12] = 1;
		(trpt+1)->bup.ovals[4] = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_there);
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_there = 0;
#ifdef VAR_RANGES
		logval("way[Receive:me].slot[Receive:n].is_there", ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_there));
#endif
		;
		/* merge: way[me].slot[n].is_ack = 0(29, 13, 29) */
		reached[0][13] = 1;
		(trpt+1)->bup.ovals[5] = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_ack);
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_ack = 0;
#ifdef VAR_RANGES
		logval("way[Receive:me].slot[Receive:n].is_ack", ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_ack));
#endif
		;
		/* merge: way[me].slot[n].is_end = 0(29, 14, 29) */
		reached[0][14] = 1;
		(trpt+1)->bup.ovals[6] = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_end);
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_end = 0;
#ifdef VAR_RANGES
		logval("way[Receive:me].slot[Receive:n].is_end", ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].is_end));
#endif
		;
		/* merge: way[me].slot[n].sequence = 0(29, 15, 29) */
		reached[0][15] = 1;
		(trpt+1)->bup.ovals[7] = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].sequence);
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].sequence = 0;
#ifdef VAR_RANGES
		logval("way[Receive:me].slot[Receive:n].sequence", ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].sequence));
#endif
		;
		/* merge: way[me].slot[n].acknowledged = 0(29, 16, 29) */
		reached[0][16] = 1;
		(trpt+1)->bup.ovals[8] = ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].acknowledged);
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].acknowledged = 0;
#ifdef VAR_RANGES
		logval("way[Receive:me].slot[Receive:n].acknowledged", ((int)now.way[ Index(((int)((P0 *)_this)->me), 2) ].slot[ Index(((int)((P0 *)_this)->n), 2) ].acknowledged));
#endif
		;
		_m = 3; goto P999; /* 8 */
	case 61: // STATE 17 - dialog.pml:98 - [assert((f.acknowledged<=ends[(1-me)].stored))] (0:0:0 - 1)
		IfNotBlocked
		reached[0][17] = 1;
		spin_assert((((int)((P0 *)_this)->f.acknowledged)<=((int)now.ends[ Index((1-((int)((P0 *)_this)->me)), 2) ].stored)), "(f.acknowledged<=ends[(1-me)].stored)", II, tt, t);
		_m = 3; goto P999; /* 0 */
	case 62: // STATE 18 - dialog.pml:100 - [((((f.acknowledged>ends[me].acked)&&(ends[me].state!=CD))&&(ends[me].state!=ABSENT)))] (24:0:1 - 1)
		IfNotBlocked
		reached[0][18] = 1;
		if (!((((((int)((P0 *)_this)->f.acknowledged)>((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].acked))&&(now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state!=1))&&(now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state!=7))))
			continue;
		/* merge: ends[me].acked = f.acknowledged(0, 19, 24) */
		reached[0][19] = 1;
		(trpt+1)->bup.oval = ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].acked);
		now.ends[ Index(((P0 *)_this)->me, 2) ].acked = ((int)((P0 *)_this)->f.acknowledged);
#ifdef VAR_RANGES
		logval("ends[Receive:me].acked", ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].acked));
#endif
		;
		_m = 3; goto P999; /* 1 */
	case 63: // STATE 20 - dialog.pml:103 - [(((ends[me].state==DO)&&(f.acknowledged>ends[me].end_at)))] (79:0:2 - 1)
		IfNotBlocked
		reached[0][20] = 1;
		if (!(((now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state==2)&&(((int)((P0 *)_this)->f.acknowledged)>((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].end_at)))))
			continue;
		/* merge: ends[me].state = CD(79, 21, 79) */
		reached[0][21] = 1;
		(trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state;
		now.ends[ Index(((P0 *)_this)->me, 2) ].state = 1;
#ifdef VAR_RANGES
		logval("ends[Receive:me].state", now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state);
#endif
		;
		/* merge: ends[me].tombstone = 1(79, 22, 79) */
		reached[0][22] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].tombstone);
		now.ends[ Index(((P0 *)_this)->me, 2) ].tombstone = 1;
#ifdef VAR_RANGES
		logval("ends[Receive:me].tombstone", ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].tombstone));
#endif
		;
		/* merge: .(goto)(0, 25, 79) */
		reached[0][25] = 1;
		;
		/* merge: .(goto)(0, 28, 79) */
		reached[0][28] = 1;
		;
		_m = 3; goto P999; /* 4 */
	case 64: // STATE 30 - dialog.pml:176 - [(!(f.is_ack))] (0:0:0 - 1)
		IfNotBlocked
		reached[0][30] = 1;
		if (!( !(((int)((P0 *)_this)->f.is_ack))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 65: // STATE 31 - dialog.pml:114 - [((ends[me].state==ABSENT))] (0:0:0 - 1)
		IfNotBlocked
		reached[0][31] = 1;
		if (!((now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state==7)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 66: // STATE 32 - dialog.pml:116 - [((((me==1)&&(f.sequence==0))&&!(ends[me].tombstone)))] (75:0:2 - 1)
		IfNotBlocked
		reached[0][32] = 1;
		if (!((((((int)((P0 *)_this)->me)==1)&&(((int)((P0 *)_this)->f.sequence)==0))&& !(((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].tombstone)))))
			continue;
		/* merge: ends[me].state = SI(75, 33, 75) */
		reached[0][33] = 1;
		(trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state;
		now.ends[ Index(((P0 *)_this)->me, 2) ].state = 5;
#ifdef VAR_RANGES
		logval("ends[Receive:me].state", now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state);
#endif
		;
		/* merge: made = (made+1)(75, 34, 75) */
		reached[0][34] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.made);
		now.made = (((int)now.made)+1);
#ifdef VAR_RANGES
		logval("made", ((int)now.made));
#endif
		;
		/* merge: assert((made==1))(75, 35, 75) */
		reached[0][35] = 1;
		spin_assert((((int)now.made)==1), "(made==1)", II, tt, t);
		/* merge: .(goto)(0, 38, 75) */
		reached[0][38] = 1;
		;
		/* merge: .(goto)(0, 41, 75) */
		reached[0][41] = 1;
		;
		_m = 3; goto P999; /* 5 */
	case 67: // STATE 42 - dialog.pml:125 - [((ends[me].state==ABSENT))] (90:0:5 - 1)
		IfNotBlocked
		reached[0][42] = 1;
		if (!((now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state==7)))
			continue;
		/* merge: .(goto)(90, 76, 90) */
		reached[0][76] = 1;
		;
		/* merge: .(goto)(90, 80, 90) */
		reached[0][80] = 1;
		;
		/* merge: f.is_ack = 0(90, 81, 90) */
		reached[0][81] = 1;
		(trpt+1)->bup.ovals = grab_ints(5);
		(trpt+1)->bup.ovals[0] = ((int)((P0 *)_this)->f.is_ack);
		((P0 *)_this)->f.is_ack = 0;
#ifdef VAR_RANGES
		logval("Receive:f.is_ack", ((int)((P0 *)_this)->f.is_ack));
#endif
		;
		/* merge: f.is_end = 0(90, 82, 90) */
		reached[0][82] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P0 *)_this)->f.is_end);
		((P0 *)_this)->f.is_end = 0;
#ifdef VAR_RANGES
		logval("Receive:f.is_end", ((int)((P0 *)_this)->f.is_end));
#endif
		;
		/* merge: f.sequence = 0(90, 83, 90) */
		reached[0][83] = 1;
		(trpt+1)->bup.ovals[2] = ((int)((P0 *)_this)->f.sequence);
		((P0 *)_this)->f.sequence = 0;
#ifdef VAR_RANGES
		logval("Receive:f.sequence", ((int)((P0 *)_this)->f.sequence));
#endif
		;
		/* merge: f.acknowledged = 0(90, 84, 90) */
		reached[0][84] = 1;
		(trpt+1)->bup.ovals[3] = ((int)((P0 *)_this)->f.acknowledged);
		((P0 *)_this)->f.acknowledged = 0;
#ifdef VAR_RANGES
		logval("Receive:f.acknowledged", ((int)((P0 *)_this)->f.acknowledged));
#endif
		;
		/* merge: n = 0(90, 85, 90) */
		reached[0][85] = 1;
		(trpt+1)->bup.ovals[4] = ((int)((P0 *)_this)->n);
		((P0 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Receive:n", ((int)((P0 *)_this)->n));
#endif
		;
		/* merge: .(goto)(0, 91, 90) */
		reached[0][91] = 1;
		;
		_m = 3; goto P999; /* 8 */
	case 68: // STATE 43 - dialog.pml:126 - [((ends[me].state==CD))] (90:0:6 - 1)
		IfNotBlocked
		reached[0][43] = 1;
		if (!((now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state==1)))
			continue;
		/* merge: ends[me].due = 1(90, 44, 90) */
		reached[0][44] = 1;
		(trpt+1)->bup.ovals = grab_ints(6);
		(trpt+1)->bup.ovals[0] = ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].due);
		now.ends[ Index(((P0 *)_this)->me, 2) ].due = 1;
#ifdef VAR_RANGES
		logval("ends[Receive:me].due", ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].due));
#endif
		;
		/* merge: .(goto)(90, 76, 90) */
		reached[0][76] = 1;
		;
		/* merge: .(goto)(90, 80, 90) */
		reached[0][80] = 1;
		;
		/* merge: f.is_ack = 0(90, 81, 90) */
		reached[0][81] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P0 *)_this)->f.is_ack);
		((P0 *)_this)->f.is_ack = 0;
#ifdef VAR_RANGES
		logval("Receive:f.is_ack", ((int)((P0 *)_this)->f.is_ack));
#endif
		;
		/* merge: f.is_end = 0(90, 82, 90) */
		reached[0][82] = 1;
		(trpt+1)->bup.ovals[2] = ((int)((P0 *)_this)->f.is_end);
		((P0 *)_this)->f.is_end = 0;
#ifdef VAR_RANGES
		logval("Receive:f.is_end", ((int)((P0 *)_this)->f.is_end));
#endif
		;
		/* merge: f.sequence = 0(90, 83, 90) */
		reached[0][83] = 1;
		(trpt+1)->bup.ovals[3] = ((int)((P0 *)_this)->f.sequence);
		((P0 *)_this)->f.sequence = 0;
#ifdef VAR_RANGES
		logval("Receive:f.sequence", ((int)((P0 *)_this)->f.sequence));
#endif
		;
		/* merge: f.acknowledged = 0(90, 84, 90) */
		reached[0][84] = 1;
		(trpt+1)->bup.ovals[4] = ((int)((P0 *)_this)->f.acknowledged);
		((P0 *)_this)->f.acknowledged = 0;
#ifdef VAR_RANGES
		logval("Receive:f.acknowledged", ((int)((P0 *)_this)->f.acknowledged));
#endif
		;
		/* merge: n = 0(90, 85, 90) */
		reached[0][85] = 1;
		(trpt+1)->bup.ovals[5] = ((int)((P0 *)_this)->n);
		((P0 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Receive:n", ((int)((P0 *)_this)->n));
#endif
		;
		/* merge: .(goto)(0, 91, 90) */
		reached[0][91] = 1;
		;
		_m = 3; goto P999; /* 9 */
	case 69: // STATE 45 - dialog.pml:127 - [((((ends[me].state==SO)||(ends[me].state==SI))||(ends[me].state==CO)))] (58:0:1 - 1)
		IfNotBlocked
		reached[0][45] = 1;
		if (!((((now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state==6)||(now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state==5))||(now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state==4))))
			continue;
		/* merge: ends[me].due = 1(0, 46, 58) */
		reached[0][46] = 1;
		(trpt+1)->bup.oval = ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].due);
		now.ends[ Index(((P0 *)_this)->me, 2) ].due = 1;
#ifdef VAR_RANGES
		logval("ends[Receive:me].due", ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].due));
#endif
		;
		_m = 3; goto P999; /* 1 */
	case 70: // STATE 47 - dialog.pml:130 - [((f.sequence==ends[me].stored))] (55:0:1 - 1)
		IfNotBlocked
		reached[0][47] = 1;
		if (!((((int)((P0 *)_this)->f.sequence)==((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].stored))))
			continue;
		/* merge: ends[me].stored = (ends[me].stored+1)(0, 48, 55) */
		reached[0][48] = 1;
		(trpt+1)->bup.oval = ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].stored);
		now.ends[ Index(((P0 *)_this)->me, 2) ].stored = (((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].stored)+1);
#ifdef VAR_RANGES
		logval("ends[Receive:me].stored", ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].stored));
#endif
		;
		_m = 3; goto P999; /* 1 */
	case 71: // STATE 49 - dialog.pml:133 - [(f.is_end)] (90:0:7 - 1)
		IfNotBlocked
		reached[0][49] = 1;
		if (!(((int)((P0 *)_this)->f.is_end)))
			continue;
		/* merge: ends[me].has_end = 1(90, 50, 90) */
		reached[0][50] = 1;
		(trpt+1)->bup.ovals = grab_ints(7);
		(trpt+1)->bup.ovals[0] = ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].has_end);
		now.ends[ Index(((P0 *)_this)->me, 2) ].has_end = 1;
#ifdef VAR_RANGES
		logval("ends[Receive:me].has_end", ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].has_end));
#endif
		;
		/* merge: ends[me].state = DI(90, 51, 90) */
		reached[0][51] = 1;
		(trpt+1)->bup.ovals[1] = now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state;
		now.ends[ Index(((P0 *)_this)->me, 2) ].state = 3;
#ifdef VAR_RANGES
		logval("ends[Receive:me].state", now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state);
#endif
		;
		/* merge: .(goto)(90, 56, 90) */
		reached[0][56] = 1;
		;
		/* merge: .(goto)(90, 59, 90) */
		reached[0][59] = 1;
		;
		/* merge: .(goto)(90, 76, 90) */
		reached[0][76] = 1;
		;
		/* merge: .(goto)(90, 80, 90) */
		reached[0][80] = 1;
		;
		/* merge: f.is_ack = 0(90, 81, 90) */
		reached[0][81] = 1;
		(trpt+1)->bup.ovals[2] = ((int)((P0 *)_this)->f.is_ack);
		((P0 *)_this)->f.is_ack = 0;
#ifdef VAR_RANGES
		logval("Receive:f.is_ack", ((int)((P0 *)_this)->f.is_ack));
#endif
		;
		/* merge: f.is_end = 0(90, 82, 90) */
		reached[0][82] = 1;
		(trpt+1)->bup.ovals[3] = ((int)((P0 *)_this)->f.is_end);
		((P0 *)_this)->f.is_end = 0;
#ifdef VAR_RANGES
		logval("Receive:f.is_end", ((int)((P0 *)_this)->f.is_end));
#endif
		;
		/* merge: f.sequence = 0(90, 83, 90) */
		reached[0][83] = 1;
		(trpt+1)->bup.ovals[4] = ((int)((P0 *)_this)->f.sequence);
		((P0 *)_this)->f.sequence = 0;
#ifdef VAR_RANGES
		logval("Receive:f.sequence", ((int)((P0 *)_this)->f.sequence));
#endif
		;
		/* merge: f.acknowledged = 0(90, 84, 90) */
		reached[0][84] = 1;
		(trpt+1)->bup.ovals[5] = ((int)((P0 *)_this)->f.acknowledged);
		((P0 *)_this)->f.acknowledged = 0;
#ifdef VAR_RANGES
		logval("Receive:f.acknowledged", ((int)((P0 *)_this)->f.acknowledged));
#endif
		;
		/* merge: n = 0(90, 85, 90) */
		reached[0][85] = 1;
		(trpt+1)->bup.ovals[6] = ((int)((P0 *)_this)->n);
		((P0 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Receive:n", ((int)((P0 *)_this)->n));
#endif
		;
		/* merge: .(goto)(0, 91, 90) */
		reached[0][91] = 1;
		;
		_m = 3; goto P999; /* 12 */
	case 72: // STATE 52 - dialog.pml:134 - [((!(f.is_end)&&(ends[me].state!=CO)))] (90:0:6 - 1)
		IfNotBlocked
		reached[0][52] = 1;
		if (!(( !(((int)((P0 *)_this)->f.is_end))&&(now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state!=4))))
			continue;
		/* merge: ends[me].state = CO(90, 53, 90) */
		reached[0][53] = 1;
		(trpt+1)->bup.ovals = grab_ints(6);
		(trpt+1)->bup.ovals[0] = now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state;
		now.ends[ Index(((P0 *)_this)->me, 2) ].state = 4;
#ifdef VAR_RANGES
		logval("ends[Receive:me].state", now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state);
#endif
		;
		/* merge: .(goto)(90, 56, 90) */
		reached[0][56] = 1;
		;
		/* merge: .(goto)(90, 59, 90) */
		reached[0][59] = 1;
		;
		/* merge: .(goto)(90, 76, 90) */
		reached[0][76] = 1;
		;
		/* merge: .(goto)(90, 80, 90) */
		reached[0][80] = 1;
		;
		/* merge: f.is_ack = 0(90, 81, 90) */
		reached[0][81] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P0 *)_this)->f.is_ack);
		((P0 *)_this)->f.is_ack = 0;
#ifdef VAR_RANGES
		logval("Receive:f.is_ack", ((int)((P0 *)_this)->f.is_ack));
#endif
		;
		/* merge: f.is_end = 0(90, 82, 90) */
		reached[0][82] = 1;
		(trpt+1)->bup.ovals[2] = ((int)((P0 *)_this)->f.is_end);
		((P0 *)_this)->f.is_end = 0;
#ifdef VAR_RANGES
		logval("Receive:f.is_end", ((int)((P0 *)_this)->f.is_end));
#endif
		;
		/* merge: f.sequence = 0(90, 83, 90) */
		reached[0][83] = 1;
		(trpt+1)->bup.ovals[3] = ((int)((P0 *)_this)->f.sequence);
		((P0 *)_this)->f.sequence = 0;
#ifdef VAR_RANGES
		logval("Receive:f.sequence", ((int)((P0 *)_this)->f.sequence));
#endif
		;
		/* merge: f.acknowledged = 0(90, 84, 90) */
		reached[0][84] = 1;
		(trpt+1)->bup.ovals[4] = ((int)((P0 *)_this)->f.acknowledged);
		((P0 *)_this)->f.acknowledged = 0;
#ifdef VAR_RANGES
		logval("Receive:f.acknowledged", ((int)((P0 *)_this)->f.acknowledged));
#endif
		;
		/* merge: n = 0(90, 85, 90) */
		reached[0][85] = 1;
		(trpt+1)->bup.ovals[5] = ((int)((P0 *)_this)->n);
		((P0 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Receive:n", ((int)((P0 *)_this)->n));
#endif
		;
		/* merge: .(goto)(0, 91, 90) */
		reached[0][91] = 1;
		;
		_m = 3; goto P999; /* 11 */
	case 73: // STATE 60 - dialog.pml:139 - [((ends[me].state==DI))] (90:0:6 - 1)
		IfNotBlocked
		reached[0][60] = 1;
		if (!((now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state==3)))
			continue;
		/* merge: ends[me].due = 1(90, 61, 90) */
		reached[0][61] = 1;
		(trpt+1)->bup.ovals = grab_ints(6);
		(trpt+1)->bup.ovals[0] = ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].due);
		now.ends[ Index(((P0 *)_this)->me, 2) ].due = 1;
#ifdef VAR_RANGES
		logval("ends[Receive:me].due", ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].due));
#endif
		;
		/* merge: .(goto)(90, 76, 90) */
		reached[0][76] = 1;
		;
		/* merge: .(goto)(90, 80, 90) */
		reached[0][80] = 1;
		;
		/* merge: f.is_ack = 0(90, 81, 90) */
		reached[0][81] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P0 *)_this)->f.is_ack);
		((P0 *)_this)->f.is_ack = 0;
#ifdef VAR_RANGES
		logval("Receive:f.is_ack", ((int)((P0 *)_this)->f.is_ack));
#endif
		;
		/* merge: f.is_end = 0(90, 82, 90) */
		reached[0][82] = 1;
		(trpt+1)->bup.ovals[2] = ((int)((P0 *)_this)->f.is_end);
		((P0 *)_this)->f.is_end = 0;
#ifdef VAR_RANGES
		logval("Receive:f.is_end", ((int)((P0 *)_this)->f.is_end));
#endif
		;
		/* merge: f.sequence = 0(90, 83, 90) */
		reached[0][83] = 1;
		(trpt+1)->bup.ovals[3] = ((int)((P0 *)_this)->f.sequence);
		((P0 *)_this)->f.sequence = 0;
#ifdef VAR_RANGES
		logval("Receive:f.sequence", ((int)((P0 *)_this)->f.sequence));
#endif
		;
		/* merge: f.acknowledged = 0(90, 84, 90) */
		reached[0][84] = 1;
		(trpt+1)->bup.ovals[4] = ((int)((P0 *)_this)->f.acknowledged);
		((P0 *)_this)->f.acknowledged = 0;
#ifdef VAR_RANGES
		logval("Receive:f.acknowledged", ((int)((P0 *)_this)->f.acknowledged));
#endif
		;
		/* merge: n = 0(90, 85, 90) */
		reached[0][85] = 1;
		(trpt+1)->bup.ovals[5] = ((int)((P0 *)_this)->n);
		((P0 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Receive:n", ((int)((P0 *)_this)->n));
#endif
		;
		/* merge: .(goto)(0, 91, 90) */
		reached[0][91] = 1;
		;
		_m = 3; goto P999; /* 9 */
	case 74: // STATE 62 - dialog.pml:140 - [((ends[me].state==DO))] (73:0:1 - 1)
		IfNotBlocked
		reached[0][62] = 1;
		if (!((now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state==2)))
			continue;
		/* merge: ends[me].due = 1(0, 63, 73) */
		reached[0][63] = 1;
		(trpt+1)->bup.oval = ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].due);
		now.ends[ Index(((P0 *)_this)->me, 2) ].due = 1;
#ifdef VAR_RANGES
		logval("ends[Receive:me].due", ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].due));
#endif
		;
		_m = 3; goto P999; /* 1 */
	case 75: // STATE 64 - dialog.pml:143 - [((f.sequence==ends[me].stored))] (70:0:1 - 1)
		IfNotBlocked
		reached[0][64] = 1;
		if (!((((int)((P0 *)_this)->f.sequence)==((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].stored))))
			continue;
		/* merge: ends[me].stored = (ends[me].stored+1)(0, 65, 70) */
		reached[0][65] = 1;
		(trpt+1)->bup.oval = ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].stored);
		now.ends[ Index(((P0 *)_this)->me, 2) ].stored = (((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].stored)+1);
#ifdef VAR_RANGES
		logval("ends[Receive:me].stored", ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].stored));
#endif
		;
		_m = 3; goto P999; /* 1 */
	case 76: // STATE 66 - dialog.pml:146 - [(f.is_end)] (90:0:7 - 1)
		IfNotBlocked
		reached[0][66] = 1;
		if (!(((int)((P0 *)_this)->f.is_end)))
			continue;
		/* merge: ends[me].state = CD(90, 67, 90) */
		reached[0][67] = 1;
		(trpt+1)->bup.ovals = grab_ints(7);
		(trpt+1)->bup.ovals[0] = now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state;
		now.ends[ Index(((P0 *)_this)->me, 2) ].state = 1;
#ifdef VAR_RANGES
		logval("ends[Receive:me].state", now.ends[ Index(((int)((P0 *)_this)->me), 2) ].state);
#endif
		;
		/* merge: ends[me].tombstone = 1(90, 68, 90) */
		reached[0][68] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].tombstone);
		now.ends[ Index(((P0 *)_this)->me, 2) ].tombstone = 1;
#ifdef VAR_RANGES
		logval("ends[Receive:me].tombstone", ((int)now.ends[ Index(((int)((P0 *)_this)->me), 2) ].tombstone));
#endif
		;
		/* merge: .(goto)(90, 71, 90) */
		reached[0][71] = 1;
		;
		/* merge: .(goto)(90, 74, 90) */
		reached[0][74] = 1;
		;
		/* merge: .(goto)(90, 76, 90) */
		reached[0][76] = 1;
		;
		/* merge: .(goto)(90, 80, 90) */
		reached[0][80] = 1;
		;
		/* merge: f.is_ack = 0(90, 81, 90) */
		reached[0][81] = 1;
		(trpt+1)->bup.ovals[2] = ((int)((P0 *)_this)->f.is_ack);
		((P0 *)_this)->f.is_ack = 0;
#ifdef VAR_RANGES
		logval("Receive:f.is_ack", ((int)((P0 *)_this)->f.is_ack));
#endif
		;
		/* merge: f.is_end = 0(90, 82, 90) */
		reached[0][82] = 1;
		(trpt+1)->bup.ovals[3] = ((int)((P0 *)_this)->f.is_end);
		((P0 *)_this)->f.is_end = 0;
#ifdef VAR_RANGES
		logval("Receive:f.is_end", ((int)((P0 *)_this)->f.is_end));
#endif
		;
		/* merge: f.sequence = 0(90, 83, 90) */
		reached[0][83] = 1;
		(trpt+1)->bup.ovals[4] = ((int)((P0 *)_this)->f.sequence);
		((P0 *)_this)->f.sequence = 0;
#ifdef VAR_RANGES
		logval("Receive:f.sequence", ((int)((P0 *)_this)->f.sequence));
#endif
		;
		/* merge: f.acknowledged = 0(90, 84, 90) */
		reached[0][84] = 1;
		(trpt+1)->bup.ovals[5] = ((int)((P0 *)_this)->f.acknowledged);
		((P0 *)_this)->f.acknowledged = 0;
#ifdef VAR_RANGES
		logval("Receive:f.acknowledged", ((int)((P0 *)_this)->f.acknowledged));
#endif
		;
		/* merge: n = 0(90, 85, 90) */
		reached[0][85] = 1;
		(trpt+1)->bup.ovals[6] = ((int)((P0 *)_this)->n);
		((P0 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Receive:n", ((int)((P0 *)_this)->n));
#endif
		;
		/* merge: .(goto)(0, 91, 90) */
		reached[0][91] = 1;
		;
		_m = 3; goto P999; /* 12 */
	case 77: // STATE 81 - dialog.pml:179 - [f.is_ack = 0] (0:90:5 - 17)
		IfNotBlocked
		reached[0][81] = 1;
		(trpt+1)->bup.ovals = grab_ints(5);
		(trpt+1)->bup.ovals[0] = ((int)((P0 *)_this)->f.is_ack);
		((P0 *)_this)->f.is_ack = 0;
#ifdef VAR_RANGES
		logval("Receive:f.is_ack", ((int)((P0 *)_this)->f.is_ack));
#endif
		;
		/* merge: f.is_end = 0(90, 82, 90) */
		reached[0][82] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P0 *)_this)->f.is_end);
		((P0 *)_this)->f.is_end = 0;
#ifdef VAR_RANGES
		logval("Receive:f.is_end", ((int)((P0 *)_this)->f.is_end));
#endif
		;
		/* merge: f.sequence = 0(90, 83, 90) */
		reached[0][83] = 1;
		(trpt+1)->bup.ovals[2] = ((int)((P0 *)_this)->f.sequence);
		((P0 *)_this)->f.sequence = 0;
#ifdef VAR_RANGES
		logval("Receive:f.sequence", ((int)((P0 *)_this)->f.sequence));
#endif
		;
		/* merge: f.acknowledged = 0(90, 84, 90) */
		reached[0][84] = 1;
		(trpt+1)->bup.ovals[3] = ((int)((P0 *)_this)->f.acknowledged);
		((P0 *)_this)->f.acknowledged = 0;
#ifdef VAR_RANGES
		logval("Receive:f.acknowledged", ((int)((P0 *)_this)->f.acknowledged));
#endif
		;
		/* merge: n = 0(90, 85, 90) */
		reached[0][85] = 1;
		(trpt+1)->bup.ovals[4] = ((int)((P0 *)_this)->n);
		((P0 *)_this)->n = 0;
#ifdef VAR_RANGES
		logval("Receive:n", ((int)((P0 *)_this)->n));
#endif
		;
		/* merge: .(goto)(0, 91, 90) */
		reached[0][91] = 1;
		;
		_m = 3; goto P999; /* 5 */
	case 78: // STATE 87 - dialog.pml:181 - [(((ends[0].state==CD)&&(ends[1].state==CD)))] (93:0:0 - 1)
		IfNotBlocked
		reached[0][87] = 1;
		if (!(((now.ends[0].state==1)&&(now.ends[1].state==1))))
			continue;
		/* merge: goto :b0(0, 88, 93) */
		reached[0][88] = 1;
		;
		_m = 3; goto P999; /* 1 */
	case 79: // STATE 93 - dialog.pml:183 - [-end-] (0:0:0 - 2)
		IfNotBlocked
		reached[0][93] = 1;
		if (!delproc(1, II)) continue;
		_m = 3; goto P999; /* 0 */
	case  _T5:	/* np_ */
		if (!((!(trpt->o_pm&4) && !(trpt->tau&128))))
			continue;
		/* else fall through */
	case  _T2:	/* true */
		_m = 3; goto P999;
#undef rand
	}

