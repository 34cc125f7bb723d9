from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('servers', '0003_tool_policy'),
    ]

    operations = [
        migrations.AddField(
            model_name='check',
            name='kind',
            field=models.CharField(choices=[('person', 'Test'), ('health', 'Health check')], default='person', max_length=10),
        ),
        migrations.AddField(
            model_name='server',
            name='failures',
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AddField(
            model_name='server',
            name='next_check_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddIndex(
            model_name='server',
            index=models.Index(condition=models.Q(('next_check_at__isnull', False)), fields=['next_check_at'], name='server_check_due'),
        ),
    ]
