// The sentences of the step view, the charts, the card, ablation and drift, in English and Chinese.

export const STEPS_WORDS = {
  en: {
    steps: "Step by step",
    "steps.about": "One row of attention with its real numbers, computed here as you go. Arrow keys ← and → take a step.",
    "steps.token": "The token that reads", "steps.token.written": "Before this token is written", "steps.quoted": "“{token}”",
    "steps.written": "The place where “{token}” is about to be written", "steps.more.before": "{n} before …", "steps.more.after": "… {n} after",
    "steps.previous": "Previous step (←)", "steps.next": "Next step (→)", "steps.d": "d = {d} numbers a head",
    "steps.m": "M: 0 where the row may read, −∞ where the mask hides the key",
    "steps.query": "Query", "steps.keys": "Keys", "steps.dot": "Dot product", "steps.scale": "Scale", "steps.mask": "Mask", "steps.softmax": "Softmax",
    "steps.sum": "Weighted sum", "steps.heads": "All heads",
    "steps.query.say": "{token} asks with its query q: {d} numbers that {head} made from what the layer knows there. Here they are.",
    "steps.keys.say": "Each of the {keys} tokens that may be read answers with a key k, also {d} numbers. The closer a key's direction is to q, the " +
      "better it fits the question.",
    "steps.dot.say": "How well a key fits is one number, q·k: multiply q and k place by place and add up the {d} products.",
    "steps.scale.say": "Sums of {d} products grow with d, and softmax would become too sharp. So every q·k is multiplied by {scale}; the usual choice " +
      "is 1 / √d, here 1 / {root}.",
    "steps.scale.none": "Sums of {d} products grow with d, so most models multiply every q·k by 1 / √d, here 1 / {root}. This one does not: q·k itself " +
      "is the score.",
    "steps.mask.say": "The mask hides {hidden} of the {keys} keys from this row. Their score becomes −∞, so that they get no weight at all.",
    "steps.mask.open": "This row may read all {keys} keys: nothing is hidden, the scores stay as they are.",
    "steps.softmax.say": "Softmax turns scores into shares: exp of each score, divided by the sum of all. The largest score is taken off first; this " +
      "changes no share and keeps the numbers small.",
    "steps.sum.say": "Each token that is read also has a value v. The row takes each v by its weight and adds them up: this vector is what the head " +
      "passes on. A large weight on a small v brings little in, which is why the maps are value-weighted at first.",
    "steps.sum.absent": "The row now takes the value v of each key by its weight and adds them up. This file holds no values (they are kept up to 256 " +
      "tokens), so it ends with the weights.",
    "steps.heads.say": "All {heads} heads of this layer do the same at this place, each with its own q, k and v. Their vectors are laid side by side " +
      "({all} numbers) and mixed by the output projection.",
    "steps.key": "Key", "steps.column.k": "k", "steps.column.dot": "q·k", "steps.column.score": "score", "steps.column.masked": "after the mask",
    "steps.column.exp": "exp(score − largest)", "steps.column.weight": "weight", "steps.column.v": "v", "steps.column.part": "weight × v",
    "steps.for": "For the key “{key}”", "steps.rest": "({n} others: {x})", "steps.size": "{n} numbers", "steps.strip": "{n} numbers from {low} to {high}",
    "steps.others": "and {n} others, together {share}", "steps.others.hidden": "; {n} of them hidden", "steps.others.top": "all others together {share}",
    "steps.total": "Sum", "steps.output": "Result", "steps.reads": "reads most", "steps.weights": "Weights", "steps.weights.only": "Weights only",
    "steps.why.pooled": "This text is too long to carry q, k and v of every head, so there is nothing to compute with here. Name the head with " +
      "--exact, or open the page with --live.",
    "steps.why.weights": "This layer does more than q·k / √d (it adds terms to the scores, uses a special mask, or scores in another way). The page " +
      "therefore carries its weights, not the vectors they came from.",
    "steps.why.live": "Served live, the weights are computed by the model as you ask for them; q, k and v stay with it.",
    "steps.shown.exact": "These are the exact weights of the row.", "steps.shown.top": "These are the largest weights of the row, exact.",
    "steps.shown.pooled": "Pooled: one line stands for a run of neighbouring keys, as a mean over neighbouring rows.",
  },
  zh: {
    steps: "逐步计算",
    "steps.about": "用真实数字算一行注意力，边看边算。按 ← → 键走一步。",
    "steps.token": "正在读的词元", "steps.token.written": "即将写出的词元", "steps.quoted": "“{token}”", "steps.written": "即将写出“{token}”的位置",
    "steps.more.before": "前面还有 {n} 个 …", "steps.more.after": "… 后面还有 {n} 个",
    "steps.previous": "上一步（←）", "steps.next": "下一步（→）", "steps.d": "d：每个头 {d} 个数", "steps.m": "M：可读处为 0，被掩码遮住处为 −∞",
    "steps.query": "查询", "steps.keys": "键", "steps.dot": "点积", "steps.scale": "缩放", "steps.mask": "掩码", "steps.softmax": "Softmax",
    "steps.sum": "加权求和", "steps.heads": "所有头",
    "steps.query.say": "{token}用查询向量 q 提问：{head} 由本层在此处的所知算出这 {d} 个数。",
    "steps.keys.say": "{keys} 个可读的词元各以一个键 k 应答，同样是 {d} 个数。键的方向与 q 越接近，就越符合提问。",
    "steps.dot.say": "键有多符合，只是一个数 q·k：q 与 k 逐位相乘，再把 {d} 个乘积相加。",
    "steps.scale.say": "{d} 个乘积之和随 d 增大，softmax 会变得过于尖锐。因此每个 q·k 都乘以 {scale}；通常取 1 / √d，此处为 1 / {root}。",
    "steps.scale.none": "{d} 个乘积之和随 d 增大，多数模型因此把每个 q·k 乘以 1 / √d，此处即 1 / {root}。这个模型不缩放：q·k 本身就是分数。",
    "steps.mask.say": "掩码对这一行遮住了 {keys} 个键中的 {hidden} 个。它们的分数变为 −∞，因而得不到任何权重。",
    "steps.mask.open": "这一行可以读全部 {keys} 个键：没有遮挡，分数不变。",
    "steps.softmax.say": "Softmax 把分数变成份额：对每个分数取 exp，再除以总和。先减去最大的分数；这不改变份额，只让数字保持较小。",
    "steps.sum.say": "每个被读的词元还有一个值向量 v。这一行按权重取各个 v 并相加：得到的向量就是这个头传下去的内容。权重大而 v 小，带来的就不多，所以各图默认按值加权。",
    "steps.sum.absent": "接下来按权重取各个键的值向量 v 并相加。文件中没有值向量（只保存到 256 个词元），所以到权重为止。",
    "steps.heads.say": "本层的 {heads} 个头在此处都做同样的计算，各有自己的 q、k、v。它们的向量并排放在一起（共 {all} 个数），再由输出投影混合。",
    "steps.key": "键", "steps.column.k": "k", "steps.column.dot": "q·k", "steps.column.score": "分数", "steps.column.masked": "掩码之后",
    "steps.column.exp": "exp(分数 − 最大值)", "steps.column.weight": "权重", "steps.column.v": "v", "steps.column.part": "权重 × v",
    "steps.for": "以键“{key}”为例", "steps.rest": "（其余 {n} 项：{x}）", "steps.size": "{n} 个数", "steps.strip": "{n} 个数，从 {low} 到 {high}",
    "steps.others": "另外 {n} 个，合计 {share}", "steps.others.hidden": "；其中 {n} 个被遮住", "steps.others.top": "其余合计 {share}",
    "steps.total": "总和", "steps.output": "结果", "steps.reads": "读得最多", "steps.weights": "权重", "steps.weights.only": "只有权重",
    "steps.why.pooled": "文本太长，无法携带每个头的 q、k、v，因此这里没有可供计算的数字。请用 --exact 指定这个头，或用 --live 打开页面。",
    "steps.why.weights": "这一层不只是 q·k / √d（分数上加了别的项、用了特殊掩码，或以别的方式打分）。因此页面携带的是权重，而不是算出权重的向量。",
    "steps.why.live": "实时模式下，权重由模型按需计算；q、k、v 留在模型那里。",
    "steps.shown.exact": "这是该行的精确权重。", "steps.shown.top": "这是该行最大的几个权重，数值精确。",
    "steps.shown.pooled": "合并显示：每一行代表一段相邻的键，并对相邻的行取平均。",
  },
};

export const LAYERS_WORDS = {
  en: {
    layers: "Layers", "layers.about": "Each head by its measures, one row a layer. A click chooses a head in every chart.",
    "layers.entropy": "Entropy", "layers.entropy.about": "How spread out the weights are: 0 reads one token, more reads many.",
    "layers.confidence": "Confidence", "layers.confidence.about": "The largest weight of a row, as a mean over rows.",
    "layers.distance": "Distance", "layers.distance.about": "How far away the head reads, on average.",
    "layers.importance": "Importance within its layer",
    "layers.importance.about": "How much the loss depends on the head (gradient at its output), as a share of the largest in its layer: each row " +
      "has its own scale.",
    "layers.first": "First-token share", "layers.first.about": "Attention that rests on the first token: often a place to put what is not needed (a sink).",
    "layers.nats": "nats", "layers.tokens": "tokens", "layers.other": "no special kind", "layers.open": "Its map", "layers.steps": "Its numbers",
    "layers.kinds": "Heads of one kind", "layers.kinds.about": "Named by what they do on this text. A head may be of several kinds; the number is its score.",
    "layers.without": "{n} heads are of no such kind.",
    "layers.why.previous": "Reads the token before.", "layers.why.next": "Reads the token after.",
    "layers.why.induction": "Finds an earlier place with the same token and reads what came after it.",
    "layers.why.positional": "Reads at a fixed distance, whatever stands there.", "layers.why.first": "Rests mostly on the first token.",
    "layers.why.broad": "Spreads over many tokens.", "layers.why.alignment": "Reads the source words that each answer word translates.",
  },
  zh: {
    layers: "各层", "layers.about": "按各项指标看每个头，每层一行。点一下就在所有图中选定这个头。",
    "layers.entropy": "熵", "layers.entropy.about": "权重有多分散：0 表示只读一个词元，越大读得越多。",
    "layers.confidence": "置信度", "layers.confidence.about": "一行中最大的权重，对各行取平均。",
    "layers.distance": "距离", "layers.distance.about": "这个头平均读多远。",
    "layers.importance": "层内重要性", "layers.importance.about": "损失对这个头的依赖程度（其输出处的梯度），按该层最大值的百分比显示：每行各有刻度，只能在同一行内比较。",
    "layers.first": "首词元份额", "layers.first.about": "停在第一个词元上的注意力：常用来安放不需要的份额（汇聚）。",
    "layers.nats": "奈特", "layers.tokens": "个词元", "layers.other": "无特别类别", "layers.open": "看它的图", "layers.steps": "看它的数字",
    "layers.kinds": "同类的头", "layers.kinds.about": "按它们在这段文本上的行为命名。一个头可以属于几类；数字是它的得分。",
    "layers.without": "有 {n} 个头不属于这些类别。",
    "layers.why.previous": "读前一个词元。", "layers.why.next": "读后一个词元。",
    "layers.why.induction": "找到前面相同的词元，读它后面的内容。",
    "layers.why.positional": "读固定距离处的词元，不管那里是什么。", "layers.why.first": "主要停在第一个词元上。",
    "layers.why.broad": "分散在许多词元上。", "layers.why.alignment": "读答案词所对应的源词。",
  },
};

export const CARD_WORDS = {
  en: {
    card: "Faithfulness",
    "card.about": "Tokens are deleted and the model is asked again. An explanation holds if the tokens that it names matter more than tokens chosen blindly.",
    "card.examples": "Texts", "card.seeds": "Random orders a text", "card.tops": "Top shares deleted or kept",
    "card.comprehensiveness": "Comprehensiveness",
    "card.comprehensiveness.about": "How much the answer's score falls when the top tokens are deleted. Larger is better.",
    "card.sufficiency": "Sufficiency", "card.sufficiency.about": "How much it falls when only the top tokens are kept. Smaller is better.",
    "card.deletion": "Deletion", "card.deletion.about": "The answer's score while the top tokens go, one after the other. Falling early is better.",
    "card.deletion.axis": "tokens deleted",
    "card.insertion": "Insertion", "card.insertion.about": "The same while they come into an empty text. Rising early is better.",
    "card.insertion.axis": "tokens put in",
    "card.method.relevance": "Relevance", "card.method.relevance.about": "attention times its gradient, carried through the layers",
    "card.method.rollout": "Rollout", "card.method.rollout.about": "mean attention multiplied over the layers: an estimate of mixing",
    "card.method.attention": "Attention", "card.method.attention.about": "attention as it is",
    "card.method.gradient": "Gradient × input", "card.method.gradient.about": "the plainest gradient, to compare with",
    "card.method.random": "Random", "card.method.random.about": "any order: what no knowledge gives",
    "card.method.recency": "Recency", "card.method.recency.about": "the last token first: knows only the place",
    "card.interval": "{mean} (95 %: {low} to {high})",
    "card.intervals": "The score is the mean log-probability of the answer's tokens. Lines are 95 % intervals; the grey bands are those of random and " +
      "recency. Intervals that do not overlap are called different here.",
    "card.intervals.one": "The score is the mean log-probability of the answer's tokens. One text has no intervals; only the random orders have a " +
      "spread, which the line and the grey band show.",
    "card.intervals.few": "The score is the mean log-probability of the answer's tokens. {n} texts are too few for intervals that could be trusted: lines " +
      "show how far apart the means of these texts, drawn anew, lie. {least} texts or more are compared.",
    "card.beats": "{method} beats {others}", "card.beats.none": "{method} beats neither random nor recency", "card.and": " and ",
  },
  zh: {
    card: "忠实度", "card.about": "删去词元，再问一次模型。如果解释所指的词元比随便挑的更重要，解释才站得住。",
    "card.examples": "文本数", "card.seeds": "每段文本的随机顺序数", "card.tops": "删去或保留的前列份额",
    "card.comprehensiveness": "完备性", "card.comprehensiveness.about": "删去前列词元后，答案的得分下降多少。越大越好。",
    "card.sufficiency": "充分性", "card.sufficiency.about": "只保留前列词元时下降多少。越小越好。",
    "card.deletion": "删除曲线", "card.deletion.about": "依次删去前列词元时答案的得分。越早下降越好。", "card.deletion.axis": "已删去的词元",
    "card.insertion": "插入曲线", "card.insertion.about": "从空文本开始依次放入时的得分。越早上升越好。", "card.insertion.axis": "已放入的词元",
    "card.method.relevance": "相关性", "card.method.relevance.about": "注意力乘以其梯度，逐层传递",
    "card.method.rollout": "注意力展开", "card.method.rollout.about": "各层平均注意力相乘：对混合的估计",
    "card.method.attention": "注意力", "card.method.attention.about": "注意力本身",
    "card.method.gradient": "梯度乘输入", "card.method.gradient.about": "最朴素的梯度，用于比较",
    "card.method.random": "随机顺序", "card.method.random.about": "任意顺序：一无所知的结果",
    "card.method.recency": "就近顺序", "card.method.recency.about": "从最后一个词元开始：只知道位置",
    "card.interval": "{mean}（95 %：{low} 至 {high}）", "card.intervals": "得分是答案各词元的平均对数概率。线段是 95 % 区间；灰色带是随机顺序与就近顺序的区间。区间不重叠才称为有差别。",
    "card.intervals.one": "得分是答案各词元的平均对数概率。一段文本没有区间；只有随机顺序有离散范围，由线段和灰色带表示。",
    "card.intervals.few": "得分是答案各词元的平均对数概率。{n} 段文本太少，没有可信的区间：线段只表示这几段文本重新抽样后平均值的范围。至少 {least} 段文本才作比较。",
    "card.beats": "{method}优于{others}", "card.beats.none": "{method}既不优于随机顺序，也不优于就近顺序", "card.and": "、",
  },
};

export const ABLATION_WORDS = {
  en: {
    ablation: "Without a head", "ablation.about": "Each head switched off, one at a time, and what that did to the loss and to the answer.",
    "ablation.mode.mask": "A head that is off gives zeros.", "ablation.mode.mean": "A head that is off always gives its mean.",
    "ablation.sum": "The loss with all heads is {loss}. Of {n} heads, {harmless} can go without a rise; {worst} is missed most ({change}).",
    "ablation.change": "Change of the loss", "ablation.change.about": "Right of zero: the model is worse without this head. Left: it is better.",
    "ablation.whole": "With all heads", "ablation.column.head": "Head", "ablation.column.change": "Change of the loss",
    "ablation.column.answer": "Answer without it",
    "ablation.same": "the same", "ablation.differs": "another answer", "ablation.all": "Show {n} more",
  },
  zh: {
    ablation: "去掉一个头", "ablation.about": "逐个关掉每个头，看损失和答案有什么变化。",
    "ablation.mode.mask": "关掉的头输出零。", "ablation.mode.mean": "关掉的头总是输出它的平均值。",
    "ablation.sum": "所有头都在时损失为 {loss}。{n} 个头中有 {harmless} 个去掉后损失不升；最不能少的是 {worst}（{change}）。",
    "ablation.change": "损失的变化", "ablation.change.about": "零的右边：没有这个头，模型更差。左边：更好。",
    "ablation.whole": "所有头都在", "ablation.column.head": "头", "ablation.column.change": "损失的变化", "ablation.column.answer": "没有它时的答案",
    "ablation.same": "不变", "ablation.differs": "答案不同", "ablation.all": "再显示 {n} 个",
  },
};

export const DRIFT_WORDS = {
  en: {
    drift: "Over training", "drift.about": "How each head changed while the model was trained, on the same few texts. One line a head; a click chooses it.",
    "drift.measure": "Measure", "drift.at": "{head}, step {step}: {value}",
    "drift.entropy": "Entropy", "drift.entropy.about": "How spread out the weights are, in nats.",
    "drift.confidence": "Confidence", "drift.confidence.about": "The largest weight of a row.",
    "drift.distance": "Distance", "drift.distance.about": "How far away the head reads, in tokens.",
    "drift.first": "First-token share", "drift.first.about": "Attention that rests on the first token.",
    "drift.previous": "Previous token", "drift.previous.about": "Weight on the token before.",
  },
  zh: {
    drift: "训练过程", "drift.about": "训练中每个头在同样几段文本上的变化。每个头一条线；点一下选定。",
    "drift.measure": "指标", "drift.at": "{head}，第 {step} 步：{value}",
    "drift.entropy": "熵", "drift.entropy.about": "权重有多分散，单位奈特。",
    "drift.confidence": "置信度", "drift.confidence.about": "一行中最大的权重。",
    "drift.distance": "距离", "drift.distance.about": "这个头读多远，以词元计。",
    "drift.first": "首词元份额", "drift.first.about": "停在第一个词元上的注意力。",
    "drift.previous": "前一词元", "drift.previous.about": "落在前一个词元上的权重。",
  },
};
